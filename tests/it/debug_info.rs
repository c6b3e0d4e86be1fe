//! `make build` moves the host's line tables out of its program. Backtraces still find them.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::support::repository;

/// Panics two calls deep. The middle call is on line 3, which only a line table can tell.
const SOURCE: &str = "fn main() { middle(std::env::args().count()); }
fn middle(number: usize) -> usize {
    deepest(number)
        + 1
}
fn deepest(number: usize) -> usize {
    if number > 0 { panic!(\"on purpose\") } else { 1 }
}
";

/// The program's output when it panics.
fn backtrace(program: &Path) -> String {
    let output = Command::new(program).env("RUST_BACKTRACE", "1").output().expect("the program starts");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn backtraces_find_the_line_tables_beside_the_program() {
    let folder = TempDir::new().expect("a temporary folder can be made");
    let (source, program) = (folder.path().join("source.rs"), folder.path().join("program"));
    let of_cargo = folder.path().join("program-of-cargo");
    std::fs::write(&source, SOURCE).expect("the folder is writable");
    let rustc = Command::new("rustc")
        .args(["--edition=2024", "-Cdebuginfo=line-tables-only", "-o"])
        .args([&program, &source])
        .status();
    assert!(rustc.expect("a compiler is installed").success());
    std::fs::hard_link(&program, &of_cargo).expect("the folder is writable");
    let size = |path: &Path| std::fs::metadata(path).expect("the file exists").len();
    let whole = size(&program);

    let split = Command::new(repository("scripts/split-debug-info")).arg(&program).status();
    assert!(split.expect("the script can be started").success());
    assert!(size(&program) < whole / 2, "{} of {whole} bytes are left", size(&program));
    assert_eq!(size(&of_cargo), whole, "Cargo's own file is unchanged");

    let found = backtrace(&program);
    assert!(found.contains("source.rs:3:"), "{found}");
    std::fs::remove_file(folder.path().join("program.debug")).expect("the line tables are beside it");
    let without = backtrace(&program);
    assert!(without.contains("middle") && !without.contains("source.rs:3:"), "{without}");
}
