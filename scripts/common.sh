# shellcheck shell=bash
# Functions for the other scripts, which source this file.

# say MESSAGE…: prints a progress message, distinct from the output of commands.
say() {
    printf '==> %s\n' "$*" >&2
}

# die MESSAGE…: prints what is wrong and how to correct it, and ends the script.
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# have COMMAND: succeeds if the command is installed.
have() {
    command -v "$1" >/dev/null 2>&1
}

# need_packages WHAT PACKAGE…: as root, installs Debian packages. Otherwise prints that WHAT is missing and ends.
apt_is_fresh=
need_packages() {
    local what=$1
    shift
    if [[ $(id -u) -ne 0 ]] || ! have apt-get; then
        die "$what is missing; install it (on Debian: \`apt-get install $*\`)"
    fi
    say "installing $what"
    [[ -n $apt_is_fresh ]] || apt-get update -qq
    apt_is_fresh=yes
    DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends "$@" >/dev/null
}

# postgres_bin: prints a directory with all required Postgres programs. Fails if there is none.
postgres_bin() {
    local directory
    for directory in \
        "$(dirname "$(command -v postgres || echo /nonexistent/postgres)")" \
        "$(pg_config --bindir 2>/dev/null)" \
        $(printf '%s\n' /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /opt/homebrew/opt/postgresql@*/bin \
            /usr/local/opt/postgresql@*/bin | sort -rV); do
        if [[ -x $directory/postgres && -x $directory/initdb && -x $directory/psql ]]; then
            printf '%s\n' "$directory"
            return
        fi
    done
    return 1
}

# browser_program: prints the path of Chromium or Chrome. Fails if there is none.
browser_program() {
    command -v chromium || command -v chromium-browser || command -v google-chrome
}
