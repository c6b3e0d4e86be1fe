//! The built host as a process.

use std::fs::{self, File, Permissions};
use std::net::{TcpListener, TcpStream};
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::operations::DOCUMENT;
use super::{Api, PostgresProxy, Shop, TestDatabase, eventually, repository};

/// The secret key of every test's environment.
pub const SECRET_KEY: &str = "planted-secret-key-of-the-tests-41c7";
/// 32 bytes, the same for all test hosts, because they share compiled components, which are authenticated with this
/// key.
pub const ENCRYPTION_KEY: &str = "test:cGxhbnRlZC1lbmNyeXB0aW9uLWtleS0wMTIzNDU2Nzg=";

/// A running host. It is killed when the value is dropped. If the test has failed, its log and exit status are printed.
pub struct Host {
    api: Api,
    child: Child,
    folder: TempDir,
}

/// A compiler process that is suspended until this value is dropped.
pub struct SuspendedCompiler(Pid);

impl Drop for SuspendedCompiler {
    fn drop(&mut self) {
        let _may_be_gone = kill_process(self.0, Signal::CONT);
    }
}

/// Text that marks secrets of the tests: a marker word, and the prefixes of generated tokens.
const PLANTED: [&str; 3] = ["planted", "nango_connect_session_", "whsec_"];

/// How a host is started.
#[derive(Default)]
pub struct HostOptions {
    program: Option<PathBuf>,
    database_url: Option<String>,
    records_url: Option<String>,
    data_dir: Option<PathBuf>,
    address: Option<String>,
    variables: Vec<(String, String)>,
}

impl HostOptions {
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the database. Without one, the host starts its own Postgres.
    pub fn database(mut self, db: &TestDatabase) -> Self {
        self.database_url = Some(db.url());
        self.records_url = db.records_url();
        self
    }

    /// Sets the URLs of the database and of the separate records database, for example through relays.
    pub fn database_urls(mut self, control: String, records: Option<String>) -> Self {
        (self.database_url, self.records_url) = (Some(control), records);
        self
    }

    /// Connects to the database through a faulty proxy.
    pub fn database_through(mut self, proxy: &PostgresProxy) -> Self {
        self.database_url = Some(proxy.url().to_owned());
        self
    }

    /// Sets the binary, for example that of an earlier build.
    pub fn program(mut self, path: &Path) -> Self {
        self.program = Some(path.to_owned());
        self
    }

    /// Sets a data directory that outlives the host.
    pub fn data_dir(mut self, path: &Path) -> Self {
        self.data_dir = Some(path.to_owned());
        self
    }

    /// Sets the listening address, for a test that needs to know it in advance.
    pub fn listen(mut self, address: &str) -> Self {
        self.address = Some(address.to_owned());
        self
    }

    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Allows guests to reach the shop.
    pub fn allow(self, shop: &Shop) -> Self {
        self.variable("SYNCLINE_EGRESS_ALLOW", &shop.address())
    }

    /// Starts the host and waits until it is ready.
    pub async fn spawn(self) -> Host {
        let mut host = self.start();
        host.wait_until_ready().await;
        host
    }

    /// Starts a host that is expected to fail. Returns its exit status and its log.
    pub async fn spawn_and_wait(self) -> (ExitStatus, String) {
        let mut host = self.start();
        (host.wait().await, host.log())
    }

    /// Starts the host and does not wait.
    pub fn start(self) -> Host {
        let folder = TempDir::new().expect("a temporary folder can be made");
        // Postgres cannot run as root. If the tests do, it runs as another user, who needs access to this folder.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o711)).expect("the folder is writable");
        let log = File::create(folder.path().join("log")).expect("a log can be made");
        let address = self.address.unwrap_or_else(|| format!("127.0.0.1:{}", free_port()));
        let data_dir = self.data_dir.unwrap_or_else(|| folder.path().join("data"));
        let program = self.program.unwrap_or_else(|| env!("CARGO_BIN_EXE_syncline").into());
        let child = Command::new(program)
            .arg("serve")
            .current_dir(&folder)
            .env_clear()
            .envs(["PATH", "TMPDIR"].iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
            .env("SYNCLINE_LISTEN", &address)
            .env("SYNCLINE_DATA_DIR", data_dir)
            .env("SYNCLINE_COMPILED_DIR", compiled_dir())
            .env("SYNCLINE_SECRET_KEY", SECRET_KEY)
            .env("SYNCLINE_ENCRYPTION_KEY", ENCRYPTION_KEY)
            .envs(self.database_url.map(|url| ("DATABASE_URL", url)))
            .envs(self.records_url.map(|url| ("SYNCLINE_RECORDS_DATABASE_URL", url)))
            .envs(self.variables)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("the file handle can be cloned"))
            .stderr(log)
            .spawn()
            .expect("the built host can be started");
        // Read while the host starts, so that no request of a test waits for it.
        LazyLock::force(&DOCUMENT);
        Host { api: Api::new(format!("http://{address}"), Some(SECRET_KEY)), child, folder }
    }
}

impl Host {
    pub async fn spawn(db: &TestDatabase) -> Self {
        HostOptions::new().database(db).spawn().await
    }

    /// The host's output so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// The listening address.
    pub fn address(&self) -> &str {
        self.api.base_url().trim_start_matches("http://")
    }

    /// Runs another command of the same program on the host's database, and returns its output.
    pub fn command(&self, db: &TestDatabase, arguments: &[&str]) -> String {
        db.command(arguments).run()
    }

    /// Creates a key with one of the presets.
    pub fn create_key(&self, db: &TestDatabase, name: &str, scope: &str) -> String {
        self.command(db, &["keys", "create", name, "--scope", scope]).trim().to_owned()
    }

    /// Kills the process without a graceful stop.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.child.wait().expect("a killed process ends");
    }

    /// Stops the host gracefully, and waits for its end.
    pub async fn stop(&mut self) {
        self.request_stop();
        self.wait_until_stopped().await;
    }

    /// Waits until the host has stopped gracefully after a request to stop.
    pub async fn wait_until_stopped(&mut self) {
        let status = self.wait().await;
        assert!(status.success(), "the host did not stop gracefully: {status}");
    }

    pub fn request_stop(&self) {
        self.signal(Signal::TERM);
    }

    pub async fn wait(&mut self) -> ExitStatus {
        eventually("the host has stopped", async || self.child.try_wait().expect("the process is our child"))
            .await
    }

    /// Freezes the host: it keeps its connections, but does not notice that time passes.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Waits until the host has frozen itself.
    pub async fn wait_until_frozen(&self) {
        let path = format!("/proc/{}/stat", self.child.id());
        eventually("the host is frozen", async || {
            let stat = fs::read_to_string(&path).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')).then_some(())
        })
        .await;
    }

    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Waits until the host compiles a component, and suspends the compiler until the value is dropped.
    pub async fn suspend_compiler(&self) -> SuspendedCompiler {
        eventually("the host compiles a component", async || {
            let compiler = self.children().into_iter().find(|child| {
                let command = fs::read(format!("/proc/{}/cmdline", child.as_raw_pid())).unwrap_or_default();
                command.split(|byte| *byte == 0).any(|argument| argument == b"compile-component")
            })?;
            kill_process(compiler, Signal::STOP).is_ok().then_some(SuspendedCompiler(compiler))
        })
        .await
    }

    /// The child processes of the host.
    fn children(&self) -> Vec<Pid> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("the host is running");
        let of_thread = |thread: std::io::Result<fs::DirEntry>| {
            fs::read_to_string(thread.expect("it can be listed").path().join("children")).unwrap_or_default()
        };
        let children: String = threads.map(of_thread).collect();
        children.split_whitespace().filter_map(|id| Pid::from_raw(id.parse().ok()?)).collect()
    }

    /// The host's peak memory use.
    pub fn peak_memory_mb(&self) -> u64 {
        self.status_kb("VmHWM:") / 1024
    }

    /// The host's current memory use.
    pub fn memory_mb(&self) -> u64 {
        self.status_kb("VmRSS:") / 1024
    }

    /// The CPU time that the host has used so far.
    pub fn cpu_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // The fields after the name in brackets. The 12th is user time, the 13th is system time.
        let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
        let hundredths: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
        Duration::from_millis(hundredths * 10)
    }

    /// The host's process id.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    fn status_kb(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let value = status.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"));
        value.and_then(|value| value.parse().ok()).expect("the system provides it")
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the host is running");
    }

    async fn wait_until_ready(&mut self) {
        if let Err(status) = self.ready_or_exited().await {
            panic!("the host exited ({status}) before it was ready");
        }
    }

    /// Waits until the host is ready. Returns its exit status if it does not start.
    pub async fn ready_or_exited(&mut self) -> Result<(), ExitStatus> {
        let api = self.api.with_key(None);
        eventually("the host is ready", async || {
            if let Some(status) = self.child.try_wait().expect("the process is our child") {
                return Some(Err(status));
            }
            let listens = TcpStream::connect(self.address()).is_ok();
            (listens && api.get("/ready").await.status == 200).then_some(Ok(()))
        })
        .await
    }
}

impl Deref for Host {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let ended = self.child.try_wait();
        let _ended_already = self.child.kill();
        let _was_waited_for = self.child.wait();
        let log = self.log();
        if std::thread::panicking() {
            let end = match ended {
                Ok(Some(status)) => format!("the host had ended: {status}"),
                _ => "the host was still running".to_owned(),
            };
            eprintln!("--- log of the host ---\n{log}--- end of the host's log; {end} ---");
            return;
        }
        // sqlx logs this warning of Postgres after a `COMMIT` or `ROLLBACK` outside of a transaction.
        let stray = log.lines().find(|line| line.contains("there is no transaction in progress"));
        assert!(stray.is_none(), "a transaction was ended twice: {}", stray.unwrap_or_default());
        // Every secret in the tests is marked, so the suite as a whole checks that no secret is logged.
        let leak = log.lines().find(|line| PLANTED.iter().any(|mark| line.contains(mark)));
        assert!(leak.is_none(), "a secret is in the log: {}", leak.unwrap_or_default());
    }
}

/// A port on which no process listens. It is below the range from which the system takes the ports of outgoing
/// connections, so that none of them takes it before it is used.
pub fn free_port() -> u16 {
    let mut ports = std::iter::repeat_with(|| rand::random_range(10_000..32_768));
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("the iterator is endless")
}

/// The folder in which all tests share compiled components, so that each is compiled once.
pub fn compiled_dir() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository("target"), PathBuf::from);
    target.join("test-compiled")
}
