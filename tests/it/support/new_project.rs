//! A project that `syncline init` has created, and commands in its folder.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{Host, PythonServer, SECRET_KEY, eventually, eventually_within, repository};

/// The languages of projects, with the file of the functions.
pub const LANGUAGES: [(&str, &str); 3] =
    [("rust", "src/lib.rs"), ("typescript", "src/index.ts"), ("python", "main.py")];
/// The number of issues that the provider has.
pub const ISSUES: usize = 250;
/// Longer than `eventually` waits, because several tests build components at the same time.
const BUILD_DEADLINE: Duration = Duration::from_secs(280);

/// A new project whose provider is a server on this machine.
pub struct NewProject {
    folder: TempDir,
    variables: Vec<(&'static str, String)>,
}

/// A command that runs until the test stops it.
pub struct Running {
    child: Child,
    output: PathBuf,
}

/// Starts the server that takes the place of GitHub.
pub async fn issue_server() -> PythonServer {
    PythonServer::start("issues.py", &[&ISSUES.to_string()]).await
}

impl NewProject {
    /// Creates a project, with the packages of the examples and without the network.
    pub fn create(language: &str, provider: &PythonServer) -> Self {
        let project = Self::empty(provider);
        let created = project.run_outside(&["init", "issues", "--language", language]);
        assert!(created.status.success(), "{}", printed(&created));
        project.prepare(language, provider);
        project
    }

    /// A folder in which a project can be created.
    pub fn empty(provider: &PythonServer) -> Self {
        let folder = TempDir::new().expect("a temporary folder can be made");
        // Postgres cannot run as root. If the tests do, it runs as another user, who needs access to this folder.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o711)).expect("the folder is writable");
        let program = Path::new(env!("CARGO_BIN_EXE_syncline"));
        let target = program.ancestors().nth(2).expect("the program is in the target directory");
        let variables = vec![
            ("CARGO_TARGET_DIR", target.join("guests").display().to_string()),
            ("CARGO_NET_OFFLINE", "true".to_owned()),
            // The program can be in a target directory outside of the clone.
            ("SYNCLINE_SDK_DIR", repository("guest-sdk").display().to_string()),
            ("SYNCLINE_EGRESS_ALLOW", provider.address()),
        ];
        Self { folder, variables }
    }

    /// Replaces the network: installs the packages of the checkout, and changes the provider's address.
    pub fn prepare(&self, language: &str, provider: &PythonServer) {
        self.install(language);
        self.edit("syncline.toml", "https://api.github.com", &provider.base_url());
    }

    /// Makes the packages of the checkout available.
    fn install(&self, language: &str) {
        let link = |from: &str, to: &str| {
            symlink(repository(from), self.path(to)).expect("the folder is writable");
        };
        match language {
            "rust" => {
                let lock = repository("examples/minimal/Cargo.lock");
                fs::copy(lock, self.path("Cargo.lock")).expect("the example has a lock file");
            }
            "typescript" => link("examples/github/node_modules", "node_modules"),
            _ => link(".venv", ".venv"),
        }
    }

    /// Sets a variable for all later commands.
    pub fn set(&mut self, name: &'static str, value: &str) {
        self.variables.push((name, value.to_owned()));
    }

    /// Sends all later commands to a host.
    pub fn use_host(&mut self, host: &Host) {
        self.set("SYNCLINE_URL", host.base_url());
        self.set("SYNCLINE_SECRET_KEY", SECRET_KEY);
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join("issues").join(file)
    }

    /// Replaces `from`, which must be in the file, with `to`.
    #[track_caller]
    pub fn edit(&self, file: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.path(file)).expect("the project has the file");
        assert!(text.contains(from), "`{from}` in {file}:\n{text}");
        fs::write(self.path(file), text.replace(from, to)).expect("the folder is writable");
    }

    /// Runs `syncline` in the folder that contains the project.
    pub fn run_outside(&self, arguments: &[&str]) -> Output {
        self.command(arguments, self.folder.path()).output().expect("the built program can be started")
    }

    /// Runs `syncline` in the project, which must succeed. Returns its standard output.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", printed(&output));
        String::from_utf8(output.stdout).expect("the output is text")
    }

    /// Runs `syncline` in the project, which must fail. Returns its standard error.
    #[track_caller]
    pub fn run_failing(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(!output.status.success(), "{arguments:?}: {}", printed(&output));
        String::from_utf8(output.stderr).expect("the output is text")
    }

    pub fn output(&self, arguments: &[&str]) -> Output {
        self.output_with(arguments, &[])
    }

    /// With additional variables.
    pub fn output_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut command = self.command(arguments, &self.path(""));
        command.envs(variables.iter().copied()).output().expect("the built program can be started")
    }

    /// Starts `syncline` in the project and does not wait.
    pub fn start(&self, arguments: &[&str]) -> Running {
        self.spawn(self.command(arguments, &self.path("")), arguments[0])
    }

    /// Starts a command of this project. Its output gets a file of this name.
    pub fn spawn(&self, mut command: Command, name: &str) -> Running {
        let output = self.folder.path().join(format!("{name}.log"));
        let log = File::create(&output).expect("a log can be made");
        let child = command
            .stdout(log.try_clone().expect("the file handle can be cloned"))
            .stderr(log)
            .spawn()
            .expect("the built program can be started");
        Running { child, output }
    }

    /// A shell script that finds `syncline`, in the folder that contains the project.
    pub fn shell(&self, script: &str) -> Command {
        let program = Path::new(env!("CARGO_BIN_EXE_syncline")).parent().expect("it is in a folder");
        let path = std::env::var("PATH").expect("the variable is set");
        let mut command = self.prepared("bash", self.folder.path());
        command.args(["-c", script]).env("PATH", format!("{}:{path}", program.display()));
        command
    }

    fn command(&self, arguments: &[&str], folder: &Path) -> Command {
        let mut command = self.prepared(env!("CARGO_BIN_EXE_syncline"), folder);
        command.args(arguments);
        command
    }

    fn prepared(&self, program: &str, folder: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(folder).envs(self.variables.clone()).stdin(Stdio::null());
        command.env_remove("DATABASE_URL").env("SYNCLINE_DATA_DIR", self.folder.path().join("data"));
        command
    }
}

impl Running {
    /// What the command has printed so far.
    pub fn printed(&self) -> String {
        fs::read_to_string(&self.output).unwrap_or_default()
    }

    /// Waits until the command has printed a text this number of times. Returns everything that it has printed.
    pub async fn wait_for(&mut self, text: &str, times: usize) -> String {
        let what = format!("the command has printed `{text}` {times} times");
        eventually_within(BUILD_DEADLINE, &what, async || {
            let printed = self.printed();
            let ended = self.child.try_wait().expect("the process is our child");
            assert!(ended.is_none(), "the command has ended:\n{printed}");
            (printed.matches(text).count() >= times).then_some(printed)
        })
        .await
    }

    /// Interrupts the command, as Ctrl-C does. Returns its exit status and what it has printed.
    pub async fn interrupt(mut self) -> (Option<i32>, String) {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("the command is running");
        let status =
            eventually("the command has ended", async || self.child.try_wait().expect("it is our child"))
                .await;
        (status.code(), self.printed())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _was_waited_for = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- output of the command ---\n{}--- end of the output ---", self.printed());
        }
    }
}

pub fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}
