//! A project on this computer, for commands that need no host.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::host::compiled_dir;
use super::{Bundle, ProviderServer};

/// A project with a built component.
pub struct LocalProject {
    folder: TempDir,
    allow: String,
}

/// What a command printed, and its exit code.
pub struct Printed {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl LocalProject {
    /// A project with the configuration and the component of a bundle, whose requests may go to this server.
    pub fn create(bundle: &Bundle, server: Option<&ProviderServer>) -> Self {
        let folder = TempDir::new().expect("a temporary folder can be made");
        bundle.write_project(folder.path());
        let allow = server.map(|server| server.address.to_string()).unwrap_or_default();
        Self { folder, allow }
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    pub fn dryrun(&self, function: &str, options: &[&str]) -> Printed {
        self.command("dryrun", &[function], options)
    }

    pub fn test(&self, options: &[&str]) -> Printed {
        self.command("test", &[], options)
    }

    fn command(&self, command: &str, before: &[&str], options: &[&str]) -> Printed {
        let output = Command::new(env!("CARGO_BIN_EXE_syncline"))
            .arg(command)
            .args(before)
            .arg(self.folder.path())
            .args(options)
            .env("SYNCLINE_EGRESS_ALLOW", &self.allow)
            .env("SYNCLINE_COMPILED_DIR", compiled_dir())
            .env_remove("SYNCLINE_SECRET_KEY")
            .output()
            .expect("the built program can be started");
        Printed {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("the output is text"),
            stderr: String::from_utf8(output.stderr).expect("the output is text"),
        }
    }

    /// Records a run, which must be successful. Returns the text of the recording.
    #[track_caller]
    pub fn record(&self, function: &str, options: &[&str]) -> String {
        let path = self.path("tests/recordings").join(format!("{function}.json"));
        let file = path.display().to_string();
        let printed = self.dryrun(function, &[&["--record", &file], options].concat());
        assert_eq!(printed.code, Some(0), "{}", printed.stderr);
        assert!(!printed.stderr.contains("differs"), "{}", printed.stderr);
        std::fs::read_to_string(path).expect("a recording was written")
    }

    /// Changes a recording.
    pub fn edit(&self, function: &str, edit: impl FnOnce(&mut Value)) {
        let path = self.path("tests/recordings").join(format!("{function}.json"));
        let text = std::fs::read_to_string(&path).expect("there is a recording");
        let mut recording = serde_json::from_str(&text).expect("a recording is JSON");
        edit(&mut recording);
        std::fs::write(path, recording.to_string()).expect("the folder is writable");
    }

    /// Copies the recordings of a project of the repository.
    pub fn copy_recordings(&self, project: &Path) {
        let (from, to) = (project.join("tests/recordings"), self.path("tests/recordings"));
        std::fs::create_dir_all(&to).expect("a folder can be made");
        for file in std::fs::read_dir(from).expect("the project has recordings") {
            let file = file.expect("the folder can be read").path();
            let name = file.file_name().expect("a file has a name");
            std::fs::copy(&file, to.join(name)).expect("a file can be copied");
        }
    }
}

impl Printed {
    /// Checks the exit code, and returns both outputs.
    #[track_caller]
    pub fn expect(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{}\n{}", self.stdout, self.stderr);
        self.stdout + &self.stderr
    }
}
