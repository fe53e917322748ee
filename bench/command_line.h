#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace longspan::bench {

/// What a benchmark program takes on its command line. Values are read into the variables that the
/// options name, whose first values are the defaults that `--help` shows.
class CommandLine {
 public:
  CommandLine(const std::string& program, const std::string& what);

  /// Adds a part of the program, chosen by its name as the first argument. A program with parts
  /// needs one of them. Its options are those added to what this returns.
  CommandLine part(const std::string& name, const std::string& what);
  /// Whether read() met this part.
  bool chosen() const;

  /// Adds an option "--NAME", or an argument "NAME" without dashes, whose value is at least
  /// `least`. Neither need be given, except for what require() names.
  void option(const std::string& name, int64_t& value, const std::string& what, int64_t least = 1);
  void option(const std::string& name, double& value, const std::string& what, double least);
  /// One whose value is 0 or 1.
  void option(const std::string& name, bool& value, const std::string& what);
  void option(const std::string& name, std::string& value, const std::string& what);
  /// Ones with several values.
  void option(const std::string& name, std::vector<std::string>& values, const std::string& what);
  void option(const std::string& name, std::vector<int64_t>& values, const std::string& what);

  /// Wants the option or argument of that name.
  void require(const std::string& name);

  /// Reads the arguments. Ends the program after `--help`, and with a message and status 1 after
  /// anything else that is not among the parts and options.
  void read(int argc, const char* const* argv);

 private:
  CommandLine(std::shared_ptr<CLI::App> root, CLI::App* app);

  std::shared_ptr<CLI::App> root_;
  CLI::App* app_;
};

}  // namespace longspan::bench
