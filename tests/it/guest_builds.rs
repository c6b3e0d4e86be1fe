//! `syncline build`: a bundle contains the component of its own project, even in a shared target directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::support::{Bundle, compiled_dir};

/// The package name of every project in these tests.
const PACKAGE: &str = "things";

/// A project whose component contains the project's mark, and the mark of its dependency `marks`.
struct Project {
    folder: PathBuf,
}

impl Project {
    fn create(folder: PathBuf, mark: &str) -> Self {
        let config = r#"
            name = "things"
            [integrations.things]
            provider = "unauthenticated"
            component = "."
        "#;
        let manifest = format!(
            r#"
            [package]
            name = "{PACKAGE}"
            version = "0.1.0"
            edition = "2024"
            [lib]
            crate-type = ["cdylib"]
            [dependencies]
            marks = {{ path = "marks" }}
            [workspace]
            "#
        );
        let dependency = r#"
            [package]
            name = "marks"
            version = "0.1.0"
            edition = "2024"
            # Makes a `.wasm` file of its own, which is not the component.
            [lib]
            crate-type = ["lib", "cdylib"]
        "#;
        write(&folder.join("syncline.toml"), config);
        write(&folder.join("Cargo.toml"), &manifest);
        write(&folder.join("marks/Cargo.toml"), dependency);
        let project = Self { folder };
        project.set_mark(mark);
        project
    }

    fn set_mark(&self, mark: &str) {
        let own = format!(
            r#"
            #[unsafe(no_mangle)]
            pub extern "C" fn mark() -> *const u8 {{ "mark of the project: {mark}.".as_ptr() }}
            #[unsafe(no_mangle)]
            pub extern "C" fn mark_of_dependency() -> *const u8 {{ marks::MARK.as_ptr() }}
            "#
        );
        let dependency = format!(r#"pub static MARK: &str = "mark of the dependency: {mark}.";"#);
        write(&self.folder.join("src/lib.rs"), &own);
        write(&self.folder.join("marks/src/lib.rs"), &dependency);
    }

    /// Builds, and checks that the bundle's component was built only from sources with this mark.
    #[track_caller]
    fn assert_builds(&self, target_dir: Option<&Path>, mark: &str) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_syncline"));
        command.arg("build").arg(&self.folder).env_remove("CARGO_TARGET_DIR");
        command.envs(target_dir.map(|target_dir| ("CARGO_TARGET_DIR", target_dir)));
        let output = command.output().expect("the built program can be started");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let bundle = fs::read(self.folder.join("build/bundle.tar")).expect("a bundle is written");
        let bundle = String::from_utf8_lossy(&bundle);
        let mut marks: Vec<&str> = bundle
            .match_indices("mark of the ")
            .map(|(at, _)| bundle[at..].split_inclusive('.').next().unwrap_or_default())
            .collect();
        marks.sort_unstable();
        let expected = [format!("mark of the dependency: {mark}."), format!("mark of the project: {mark}.")];
        assert_eq!(marks, expected);
    }
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("a folder can be made");
    fs::write(path, text).expect("a file can be written");
}

#[test]
fn projects_with_one_package_name_can_share_a_target_directory() {
    let folder = TempDir::new().expect("a temporary folder can be made");
    let target = folder.path().join("target");
    let target = Some(target.as_path());
    // Both are created before either is built, so that neither looks newer than the other's output.
    let first = Project::create(folder.path().join("first"), "first");
    let second = Project::create(folder.path().join("second"), "second");
    first.assert_builds(target, "first");
    second.assert_builds(target, "second");
    // Nothing has changed since the last build.
    first.assert_builds(target, "first");
    second.assert_builds(target, "second");
    second.assert_builds(target, "second");
    first.assert_builds(target, "first");

    second.set_mark("second, changed");
    first.assert_builds(target, "first");
    second.assert_builds(target, "second, changed");
}

#[test]
fn a_target_directory_from_cargo_configuration_can_be_shared() {
    let folder = TempDir::new().expect("a temporary folder can be made");
    let config = "[build]\ntarget-dir = \"shared\"\n";
    write(&folder.path().join(".cargo/config.toml"), config);
    let first = Project::create(folder.path().join("first"), "first");
    let second = Project::create(folder.path().join("second"), "second");
    for _ in 0..2 {
        first.assert_builds(None, "first");
        second.assert_builds(None, "second");
    }
}

#[test]
fn workspace_members_with_one_library_name_build_separately() {
    let folder = TempDir::new().expect("a temporary folder can be made");
    let workspace = "[workspace]\nmembers = [\"first\", \"second\"]\nresolver = \"3\"\n";
    write(&folder.path().join("Cargo.toml"), workspace);
    let projects = ["first", "second"].map(|name| {
        let project = Project::create(folder.path().join(name), name);
        let manifest = format!(
            r#"
            [package]
            name = "{name}"
            version = "0.1.0"
            edition = "2024"
            [lib]
            name = "component"
            crate-type = ["cdylib"]
            [dependencies]
            marks = {{ path = "marks", package = "marks-of-{name}" }}
            "#
        );
        write(&project.folder.join("Cargo.toml"), &manifest);
        let dependency = format!(
            r#"
            [package]
            name = "marks-of-{name}"
            version = "0.1.0"
            edition = "2024"
            "#
        );
        write(&project.folder.join("marks/Cargo.toml"), &dependency);
        (name, project)
    });
    for _ in 0..2 {
        for (name, project) in &projects {
            project.assert_builds(None, name);
        }
    }
}

/// Copies the component of the minimal example with another `syncline.toml`, and checks the project.
fn check_minimal(config: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let folder = TempDir::new().expect("a temporary folder can be made");
    fs::write(folder.path().join("minimal.wasm"), Bundle::example("minimal").component())
        .expect("the folder is writable");
    write(&folder.path().join("syncline.toml"), config);
    let mut command = Command::new(env!("CARGO_BIN_EXE_syncline"));
    let command = command.env("SYNCLINE_COMPILED_DIR", compiled_dir());
    let output = command.arg("check").args(arguments).arg(folder.path()).output();
    let output = output.expect("the built program can be started");
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

/// A project of the minimal example, whose component has the sync `numbers` and the action `echo`.
fn minimal(component: &str, functions: &str) -> String {
    format!(
        "name = \"minimal\"\n[models.Number]\nid = \"string\"\n[integrations.minimal]\n\
         provider = \"unauthenticated\"\ncomponent = \"{component}\"\n{functions}"
    )
}

const NUMBERS: &str = "[integrations.minimal.syncs.numbers]\nruns = \"every hour\"\nmodel = \"Number\"\n";

#[test]
fn check_reports_functions_that_no_table_lists() {
    let (status, text) = check_minimal(&minimal("minimal.wasm", NUMBERS), &[]);
    assert_eq!(status, Some(0), "{text}");
    assert!(
        text.contains("note: the action `echo` of the component `minimal.wasm` is in no table"),
        "{text}"
    );
}

#[test]
fn check_explains_missing_functions() {
    let echo_as_sync = NUMBERS.replace("numbers", "echo");
    let (status, text) = check_minimal(&minimal("minimal.wasm", &echo_as_sync), &[]);
    assert_eq!(status, Some(3), "{text}");
    assert!(text.contains("the component has the action `echo`; list it under `actions`"), "{text}");
    let unknown = NUMBERS.replace("numbers", "customers");
    let (status, text) = check_minimal(&minimal("minimal.wasm", &unknown), &[]);
    assert_eq!(status, Some(3), "{text}");
    assert!(text.contains("in Rust, name it in `export!`"), "{text}");
}

#[test]
fn check_reports_a_missing_component_without_a_build() {
    let (status, text) = check_minimal(&minimal("elsewhere", NUMBERS), &["--no-build"]);
    assert_eq!(status, Some(3), "{text}");
    assert!(text.contains("there is no folder or file `elsewhere`"), "{text}");
}

/// The files in a folder for compiled components, with the time at which each was written.
fn compiled_components(folder: &Path) -> Vec<(PathBuf, std::time::SystemTime)> {
    let files = fs::read_dir(folder.join("local")).expect("the command has created the folder");
    let mut files: Vec<_> = files
        .map(|file| file.expect("the folder can be read"))
        .filter(|file| file.path().extension().is_some_and(|extension| extension == "code"))
        .map(|file| {
            let written_at = file.metadata().and_then(|metadata| metadata.modified());
            (file.path(), written_at.expect("the file system stores the time"))
        })
        .collect();
    files.sort();
    files
}

#[test]
fn check_compiles_an_unchanged_component_only_once() {
    let compiled = TempDir::new().expect("a temporary folder can be made");
    let folder = compiled.path().to_str().expect("the path is text");
    let check = || {
        let (status, text) = check_minimal(&minimal("minimal.wasm", NUMBERS), &["--compiled-dir", folder]);
        assert_eq!(status, Some(0), "{text}");
        compiled_components(compiled.path())
    };
    let first = check();
    assert_eq!(first.len(), 1, "{first:?}");
    assert_eq!(check(), first);
}
