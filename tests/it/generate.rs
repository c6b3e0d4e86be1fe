//! `syncline generate` writes the types of a project's models.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::support::repository;

/// The SDKs' folders with a project that has every kind of type, the file that marks a project of their language, and
/// the generated file.
const LANGUAGES: [(&str, &str, &str); 3] = [
    ("guest-sdk/rust/tests/generated", "Cargo.toml", "src/models.rs"),
    ("guest-sdk/typescript/tests/generated", "package.json", "models.ts"),
    ("guest-sdk/python/tests/generated", "pyproject.toml", "models.py"),
];

/// A copy of such a project without its generated file.
struct Project(TempDir);

impl Project {
    fn copy(sources: &str, mark: &str) -> Self {
        let folder = TempDir::new().expect("a temporary folder can be made");
        let sources = repository(sources);
        fs::create_dir(folder.path().join("schemas")).expect("the folder is writable");
        for file in ["syncline.toml", "schemas/invoice.json"] {
            fs::copy(sources.join(file), folder.path().join(file)).expect("the project has the file");
        }
        if sources.join("src").is_dir() {
            fs::create_dir(folder.path().join("src")).expect("the folder is writable");
        }
        fs::write(folder.path().join(mark), "").expect("the folder is writable");
        Self(folder)
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        syncline(arguments, self.0.path())
    }
}

fn syncline(arguments: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_syncline"));
    command.args(arguments).arg(folder).output().expect("the built program can be started")
}

#[track_caller]
fn expect(output: &Output, status: i32, text: &str) {
    let all = [&output.stdout[..], &output.stderr[..]].concat();
    let all = String::from_utf8_lossy(&all);
    assert_eq!(output.status.code(), Some(status), "{all}");
    assert!(all.contains(text), "`{text}` in {all}");
}

#[test]
fn every_kind_of_type_is_generated_in_each_language() {
    for (sources, mark, file) in LANGUAGES {
        let project = Project::copy(sources, mark);
        expect(&project.run(&["generate"]), 0, &format!("wrote {file}"));
        let generated = fs::read_to_string(project.path(file)).expect("the file was written");
        // After a change of the generator, this writes the files again, which the tests of the SDKs use.
        if std::env::var_os("SYNCLINE_WRITE_GENERATED").is_some() {
            fs::write(repository(sources).join(file), &generated).expect("the folder is writable");
        }
        let expected = fs::read_to_string(repository(sources).join(file)).expect("the file is checked in");
        assert_eq!(generated, expected, "{sources}/{file}");
        expect(&project.run(&["generate"]), 0, "is up to date");
        expect(&project.run(&["generate", "--check"]), 0, "is up to date");
    }
}

#[test]
fn the_examples_are_up_to_date() {
    for example in ["github", "hubspot"] {
        let folder = repository("examples").join(example);
        expect(&syncline(&["generate", "--check"], &folder), 0, "is up to date");
    }
}

#[test]
fn models_that_have_changed_are_reported() {
    let (sources, mark, file) = LANGUAGES[1];
    let project = Project::copy(sources, mark);
    expect(&project.run(&["generate"]), 0, "wrote");
    expect(&project.run(&["check", "--no-build"]), 0, "no mistakes");
    let config = fs::read_to_string(project.path("syncline.toml")).expect("the project has the file");
    let changed = config.replacen("text = \"string\"", "text = \"integer\"", 1);
    fs::write(project.path("syncline.toml"), changed).expect("the folder is writable");
    let stale = format!("`{file}` does not match the models");
    expect(&project.run(&["check", "--no-build"]), 3, &stale);
    expect(&project.run(&["generate", "--check"]), 3, "run `syncline generate`");
    expect(&project.run(&["generate"]), 0, "wrote");
    expect(&project.run(&["check", "--no-build"]), 0, "no mistakes");
}

#[test]
fn a_file_that_was_not_generated_is_kept() {
    let (sources, mark, file) = LANGUAGES[2];
    let project = Project::copy(sources, mark);
    fs::write(project.path(file), "mine = 1\n").expect("the folder is writable");
    expect(&project.run(&["generate"]), 1, "models.py was not generated");
    assert_eq!(fs::read_to_string(project.path(file)).expect("it exists"), "mine = 1\n");
    expect(&project.run(&["check", "--no-build"]), 0, "no mistakes");
}

#[test]
fn a_project_without_sources_has_nothing_to_generate() {
    let (sources, mark, _) = LANGUAGES[0];
    let project = Project::copy(sources, mark);
    fs::remove_file(project.path(mark)).expect("it exists");
    expect(&project.run(&["generate"]), 1, "no component of the project has sources");
}
