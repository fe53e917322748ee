# Shared by the scripts beside it; source it from bash with the repository as working directory.

# What a clean Debian 12 needs to build everything, tests and benchmarks included.
packages=(
  g++ cmake ninja-build pkg-config ca-certificates
  libhwy-dev libopenblas-pthread-dev libfmt-dev
  libcli11-dev libtomlplusplus-dev nlohmann-json3-dev libxxhash-dev libpng-dev zlib1g-dev
  libsentencepiece-dev libutf8proc-dev libcairo2-dev
  libgtest-dev libbenchmark-dev
  dpkg-dev file               # for the Debian package that cpack makes
  libopenmpi-dev openmpi-bin  # for runs of several processes; all else works without them
)

# What the site of the documentation needs (scripts/site.sh), and nothing else does.
site_packages=(doxygen doxygen-awesome-css mkdocs mkdocs-material python3)

say() { printf '\n== %s\n' "$*"; }
die() { printf '%s\n' "$*" >&2; exit 1; }

# Installs the packages that are missing, as root where there are any and not otherwise.
install_missing() {
  if ! command -v dpkg-query >/dev/null 2>&1; then
    echo "This is not a Debian system: the names of what is needed are in scripts/common.sh."
    return 0
  fi
  local missing=() package
  for package in "${packages[@]}"; do
    case "$(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null || true)" in
      ii*) ;;
      *) missing+=("$package") ;;
    esac
  done
  if [ ${#missing[@]} -eq 0 ]; then return 0; fi
  say "Installing ${missing[*]}"
  local root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 ||
      die "These packages are missing; as root: apt-get install ${missing[*]}"
    echo "Root is needed for this once."
    root=(sudo)
  fi
  local apt=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Acquire::Retries=3
             -o Dpkg::Use-Pty=0)
  # The lists may be there already and good enough; a fresh container has none.
  "${apt[@]}" install --no-install-recommends "${missing[@]}" >"$log_folder/apt.log" 2>&1 ||
    { "${apt[@]}" update >"$log_folder/apt.log" 2>&1 &&
      "${apt[@]}" install --no-install-recommends "${missing[@]}" >>"$log_folder/apt.log" 2>&1; } ||
    { tail -n 20 "$log_folder/apt.log" >&2
      die "Installing failed; the whole log is $log_folder/apt.log"; }
}

# configure PRESET [CMake options]: quiet unless it fails.
configure() {
  local preset=$1
  shift
  # A build folder of another place, or of a configure that was cut short, is of no use.
  if [ -f "build/$preset/CMakeCache.txt" ] &&
     { [ ! -f "build/$preset/build.ninja" ] ||
       ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" "build/$preset/CMakeCache.txt"; }; then
    rm -rf "build/$preset"
  fi
  cmake --preset "$preset" "$@" >"$log_folder/configure-$preset.log" 2>&1 ||
    { tail -n 30 "$log_folder/configure-$preset.log" >&2
      die "Configuring failed; the whole log is $log_folder/configure-$preset.log"; }
}

# build PRESET [targets]: progress of the build tool, with as many jobs as processors.
build() {
  local preset=$1 jobs
  shift
  jobs=${LONGSPAN_JOBS:-$(nproc)}
  if [ $# -gt 0 ]; then set -- --target "$@"; fi
  cmake --build "build/$preset" -j "$jobs" "$@"
}

log_folder=build/logs
mkdir -p "$log_folder" ||
  die "Cannot write below $PWD; clone into a folder of your own and start from there."
