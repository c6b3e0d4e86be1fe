//! Builds guests written in TypeScript and Python with the build command of their SDK, which is installed in the
//! project. The version of the SDK therefore decides which toolchain makes the component.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{BuildError, file_error};

/// The language of a project that its SDK builds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Script {
    TypeScript,
    Python,
}

impl Script {
    /// Recognizes a project by the file in which its language declares dependencies.
    pub fn of(project_dir: &Path) -> Option<Self> {
        let languages = [("package.json", Self::TypeScript), ("pyproject.toml", Self::Python)];
        languages.into_iter().find(|(file, _)| project_dir.join(file).is_file()).map(|(_, script)| script)
    }

    /// Builds the project and returns its component. Messages of the build go to standard error.
    pub fn build(self, project_dir: &Path) -> Result<Vec<u8>, BuildError> {
        let project_dir = project_dir.canonicalize().map_err(file_error(project_dir))?;
        let folder = tempfile::tempdir().map_err(file_error(&std::env::temp_dir()))?;
        let component = folder.path().join("component.wasm");
        let (program, arguments) = self.command(&project_dir)?;
        let mut command = Command::new(&program);
        command.args(arguments).arg("--out").arg(&component).current_dir(&project_dir);
        let built = command.stdin(Stdio::null()).output().map_err(|source| BuildError::NoProgram {
            program: PathBuf::from(program),
            project: project_dir.clone(),
            hint: self.how_to_install(),
            source,
        })?;
        // Standard output belongs to our own command. The messages are written at once, because a spinner may be shown
        // during the build.
        let messages = [built.stdout, built.stderr].concat();
        io::stderr().write_all(&messages).map_err(file_error(Path::new("standard error")))?;
        if !built.status.success() {
            return Err(BuildError::ScriptFailed { project: project_dir, hint: self.how_to_install() });
        }
        fs::read(&component).map_err(file_error(&component))
    }

    /// The program to run, and its arguments.
    fn command(self, project_dir: &Path) -> Result<(OsString, Vec<&'static str>), BuildError> {
        match self {
            Self::TypeScript => {
                let program = upwards(project_dir, Path::new("node_modules/.bin/syncline-componentize"));
                let missing =
                    || BuildError::NoSdk { project: project_dir.to_owned(), hint: self.how_to_install() };
                Ok((program.ok_or_else(missing)?.into(), Vec::new()))
            }
            Self::Python => {
                let python = Path::new("bin/python");
                let active = || std::env::var_os("VIRTUAL_ENV").map(|folder| Path::new(&folder).join(python));
                let program = upwards(project_dir, &Path::new(".venv").join(python)).or_else(active);
                let program = program.map_or_else(|| "python3".into(), PathBuf::into_os_string);
                Ok((program, vec!["-m", "syncline_sdk.componentize"]))
            }
        }
    }

    fn how_to_install(self) -> &'static str {
        match self {
            Self::TypeScript => {
                "run `npm install` in it; its package.json must depend on `@syncline/sdk`. If it depends on a folder, \
                 run `npm install` and `npm run build` in that folder first"
            }
            Self::Python => {
                "install its dependencies with `python3 -m venv .venv` and `.venv/bin/pip install --editable .`; its \
                 pyproject.toml must depend on `syncline-sdk[build]`"
            }
        }
    }
}

/// Looks for a file in a folder and in those that contain it.
fn upwards(folder: &Path, file: &Path) -> Option<PathBuf> {
    folder.ancestors().map(|folder| folder.join(file)).find(|path| path.exists())
}
