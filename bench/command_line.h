#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace longspan::bench {

/// The command line of a benchmark program, read by CLI11. Values go into the variables that are
/// given with the options; what these hold before are the defaults, which `--help` shows.
class CommandLine {
 public:
  CommandLine(const std::string& program, const std::string& what);

  /// Adds a subcommand, chosen by its name as the first argument, and returns it, so that options
  /// can be added to it. A program with subcommands needs one of them.
  CommandLine part(const std::string& name, const std::string& what);
  /// Whether the arguments named this subcommand.
  bool chosen() const;

  /// Adds an option "--NAME", or an argument "NAME" without dashes, whose value is at least
  /// `least`. Both are optional unless require() names them.
  void option(const std::string& name, int64_t& value, const std::string& what, int64_t least = 1);
  void option(const std::string& name, double& value, const std::string& what, double least);
  /// An option whose value is 0 or 1.
  void option(const std::string& name, bool& value, const std::string& what);
  void option(const std::string& name, std::string& value, const std::string& what);
  /// Options with one or more values.
  void option(const std::string& name, std::vector<std::string>& values, const std::string& what);
  void option(const std::string& name, std::vector<int64_t>& values, const std::string& what);

  /// Makes the option or argument of that name required.
  void require(const std::string& name);

  /// Reads the arguments. `--help` ends the program with status 0; an unknown option, a value out
  /// of range or a missing argument ends it with a message and status 1.
  void read(int argc, const char* const* argv);

 private:
  CommandLine(std::shared_ptr<CLI::App> root, CLI::App* app);

  std::shared_ptr<CLI::App> root_;
  CLI::App* app_;
};

}  // namespace longspan::bench
