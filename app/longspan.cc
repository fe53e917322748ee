// The program longspan: trains, evaluates and samples every model of the library.
#include "app/program.h"

int main(int argc, char** argv) { return longspan::run_program(argc, argv); }
