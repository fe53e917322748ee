#include "bench/command_line.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <utility>

namespace longspan::bench {

CommandLine::CommandLine(const std::string& program, const std::string& what)
    : root_(std::make_shared<CLI::App>(what, program)), app_(root_.get()) {
  app_->option_defaults()->always_capture_default();
}

CommandLine::CommandLine(std::shared_ptr<CLI::App> root, CLI::App* app)
    : root_(std::move(root)), app_(app) {}

CommandLine CommandLine::part(const std::string& name, const std::string& what) {
  app_->require_subcommand(1);
  return {root_, app_->add_subcommand(name, what)};
}

bool CommandLine::chosen() const { return app_->parsed(); }

void CommandLine::option(const std::string& name, int64_t& value, const std::string& what,
                         int64_t least) {
  app_->add_option(name, value, what)->check(CLI::Range(least, INT64_MAX));
}
void CommandLine::option(const std::string& name, double& value, const std::string& what,
                         double least) {
  app_->add_option(name, value, what)->check(CLI::Range(least, 1e300));
}
void CommandLine::option(const std::string& name, bool& value, const std::string& what) {
  app_->add_option(name, value, what);
}
void CommandLine::option(const std::string& name, std::string& value, const std::string& what) {
  app_->add_option(name, value, what);
}
void CommandLine::option(const std::string& name, std::vector<std::string>& values,
                         const std::string& what) {
  app_->add_option(name, values, what);
}
void CommandLine::option(const std::string& name, std::vector<int64_t>& values,
                         const std::string& what) {
  app_->add_option(name, values, what)->check(CLI::PositiveNumber);
}

void CommandLine::require(const std::string& name) { app_->get_option(name)->required(); }

void CommandLine::read(int argc, const char* const* argv) {
  try {
    root_->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(root_->exit(error) == 0 ? 0 : 1);
  }
}

}  // namespace longspan::bench
