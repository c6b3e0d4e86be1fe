//! Runs the shell blocks of the README, the tutorials and the quick starts in order, as a reader would, on a host that
//! has taken the demo's tour.
//!
//! Each block must succeed, and a request must not be answered with an error. Where an output follows a block in the
//! page, the block's own output must have its words (or its keys, for JSON).

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::{
    ENCRYPTION_KEY, Host, HostOptions, SECRET_KEY, Shop, TestDatabase, free_port, repository,
};

/// The pages, in an order in which each finds what it says that it needs.
const PAGES: [&str; 7] = [
    "README.md",
    "docs/tutorials/first-sync.md",
    "docs/tutorials/actions-as-ai-tools.md",
    "docs/tutorials/connect-your-users.md",
    "docs/tutorials/webhooks.md",
    "docs/quickstarts/node.md",
    "docs/quickstarts/python.md",
];
/// What the test does in another way than the pages: the demo runs already, and its address is in the environment.
const DONE_BY_THE_TEST: [&str; 2] = ["make demo", "export SYNCLINE_URL="];
/// Servers that run until the reader stops them.
const SERVERS: [&str; 3] = ["backend.py listen", "backend.mjs listen", "python3 -m http.server"];
const SERVER_LOG: &str = "server.log";
/// Results of syncs and webhooks arrive within this time.
const PATIENCE: Duration = Duration::from_secs(30);
/// Requests fail on an error status; variables that a block sets are there in the next one.
const PREAMBLE: &str = r#"
curl() { command curl --silent --show-error --fail-with-body "$@"; }
source ./state.sh
set -o allexport -o errexit -o pipefail
"#;
/// Keeps variables and the current folder for the next block.
const SAVE_STATE: &str = r#"{ export -p; echo "cd '$PWD'"; } > "$READER_FOLDER/state.sh""#;

pub struct Block {
    pub language: String,
    pub text: String,
    /// The file that the sentence before the block tells the reader to create or change.
    pub file: Option<String>,
    /// Whether a heading separates it from the block before.
    pub begins_section: bool,
}

pub fn blocks(page: &str) -> Vec<Block> {
    let named = regex::Regex::new(r"^(?:Create|Change|.*\. Change) `([^`]+)`").expect("the pattern is valid");
    let (mut blocks, mut open, mut file, mut begins_section) = (Vec::new(), None::<Block>, None, true);
    for line in page.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(language)) => {
                open = Some(Block {
                    language: language.to_owned(),
                    text: String::new(),
                    file: file.take(),
                    begins_section,
                });
                begins_section = false;
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => block.text.extend([line, "\n"]),
            (None, None) => {
                begins_section |= line.starts_with('#');
                if let Some(found) = named.captures(line) {
                    file = Some(found[1].to_owned());
                }
            }
        }
    }
    blocks
}

/// A folder that looks like the repository after `make demo`, and what the reader has in the environment.
struct Reader {
    folder: TempDir,
    variables: Vec<(&'static str, String)>,
    receiver_port: u16,
    servers: Vec<Child>,
}

impl Reader {
    fn new(host: &Host, db: &TestDatabase, receiver_port: u16) -> Self {
        let folder = TempDir::new().expect("a temporary folder can be made");
        let link =
            |from: &Path, to: &str| symlink(from, folder.path().join(to)).expect("the folder is writable");
        for entry in
            ["Cargo.toml", "Cargo.lock", "bench", "docs", "guest-sdk", "host", "scripts", "tests", "wit"]
        {
            link(&repository(entry), entry);
        }
        for entry in ["examples", "target/debug"] {
            fs::create_dir_all(folder.path().join(entry)).expect("the folder is writable");
        }
        for example in ["stripe", "minimal", "backends"] {
            link(&repository("examples").join(example), &format!("examples/{example}"));
        }
        // The versions that are downloaded already, so that the build of the tutorial's project needs no network.
        let lock = folder.path().join("examples/shop/Cargo.lock");
        fs::create_dir_all(folder.path().join("examples/shop")).expect("the folder is writable");
        fs::copy(repository("examples/stripe/Cargo.lock"), lock).expect("the example has a lock file");
        let program = Path::new(env!("CARGO_BIN_EXE_syncline"));
        link(program, "target/debug/syncline");
        let guests =
            program.ancestors().nth(2).expect("the program is in the target directory").join("guests");
        link(&guests, "target/guests");
        let variables = vec![
            ("SYNCLINE_URL", host.base_url().to_owned()),
            ("SYNCLINE_SECRET_KEY", SECRET_KEY.to_owned()),
            ("DATABASE_URL", db.url()),
            ("SYNCLINE_ENCRYPTION_KEY", ENCRYPTION_KEY.to_owned()),
            ("PORT", receiver_port.to_string()),
            ("PYTHONUNBUFFERED", "1".to_owned()),
        ];
        Self { folder, variables, receiver_port, servers: Vec::new() }
    }

    fn shell(&self, script: &str) -> Command {
        let mut command = Command::new("bash");
        let script = format!("{PREAMBLE}\n{script}\n{SAVE_STATE}");
        command.args(["-c", &script]).current_dir(self.folder.path()).stdin(Stdio::null());
        command.env("READER_FOLDER", self.folder.path()).envs(self.variables.clone());
        command
    }

    /// The block as the reader would type it on this machine.
    fn adapted(&self, block: &str) -> String {
        let data_dir = regex::Regex::new(r" *\\?\n? *--data-dir \S+").expect("the pattern is valid");
        let block = block.replace("4567", &self.receiver_port.to_string());
        let block = block.replace("deploy examples/shop", "deploy examples/shop --yes");
        data_dir.replace_all(&block, "").into_owned()
    }

    fn run(&self, block: &str) -> Output {
        self.shell(&self.adapted(block)).output().expect("bash can be run")
    }

    fn start(&mut self, block: &str) {
        let script = self.adapted(block).trim_end().to_owned();
        // The last command replaces the shell, so that it ends with it.
        let (setup, server) = script.rsplit_once('\n').unwrap_or(("", &script));
        let mut command = self.shell(&format!("{setup}\nexec {server}"));
        let log = fs::File::create(self.folder.path().join(SERVER_LOG)).expect("the folder is writable");
        let server = command.stdout(log).stderr(Stdio::null()).spawn().expect("bash can be run");
        self.servers.push(server);
    }

    /// What the reader sees in the terminal of the server.
    fn server_output(&self) -> String {
        fs::read_to_string(self.folder.path().join(SERVER_LOG)).unwrap_or_default()
    }

    /// Begins a page in a new terminal.
    fn open_terminal(&mut self) {
        self.stop_servers();
        fs::write(self.folder.path().join("state.sh"), "").expect("the folder is writable");
    }

    fn stop_servers(&mut self) {
        for mut server in self.servers.drain(..) {
            let _already_gone = server.kill();
            let _status = server.wait();
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop_servers();
    }
}

/// What an output must contain to look like the one in the page: the keys of JSON, the plain words of other text.
fn expected_parts(block: &Block) -> BTreeSet<String> {
    let pattern = match &*block.language {
        "json" => r#"("[a-z_A-Z]+"):"#,
        _ => r"(?:^|[\s`])([a-z]{4,})(?:[\s`,.:]|$)",
    };
    let pattern = regex::Regex::new(pattern).expect("the pattern is valid");
    let mut parts = BTreeSet::new();
    for line in block.text.lines() {
        let mut at = 0;
        while let Some(found) = pattern.captures_at(line, at) {
            let part = found.get(1).expect("the pattern has a group");
            parts.insert(part.as_str().to_owned());
            at = part.end();
        }
    }
    parts
}

#[tokio::test(flavor = "multi_thread")]
async fn every_shell_block_of_the_readme_the_tutorials_and_the_quick_starts_works() {
    let (db, shop) = (TestDatabase::create().await, Shop::start().await);
    let providers = shop.provider_files();
    let receiver_port = free_port();
    let host = HostOptions::new()
        .database(&db)
        .variable("SYNCLINE_PROVIDERS_DIR", &providers.path().display().to_string())
        .variable("SYNCLINE_EGRESS_ALLOW", &format!("{},127.0.0.1:{receiver_port}", shop.address()))
        .spawn()
        .await;
    let mut reader = Reader::new(&host, &db, receiver_port);
    let tour = Command::new(repository(".tools/venv/bin/python"))
        .arg(repository("scripts/demo_tour.py"))
        .current_dir(repository(""))
        .envs(reader.variables.clone())
        .env("STRIPE_URL", shop.base_url())
        .env("SYNCLINE", env!("CARGO_BIN_EXE_syncline"))
        .output()
        .expect("Python is not installed; `scripts/setup` installs it");
    assert!(tour.status.success(), "the tour failed:\n{}", printed(&tour));
    for page in PAGES {
        let text = fs::read_to_string(repository(page)).expect("the page is there");
        reader.open_terminal();
        tokio::task::block_in_place(|| read(&mut reader, page, &blocks(&text)));
    }
}

/// Does what a page says.
fn read(reader: &mut Reader, page: &str, blocks: &[Block]) {
    let mut run = 0;
    for (number, block) in blocks.iter().enumerate() {
        if let Some(file) = &block.file {
            let path = reader.folder.path().join(file);
            fs::create_dir_all(path.parent().expect("a file has a folder")).expect("the folder is writable");
            fs::write(path, &block.text).expect("the folder is writable");
        }
        if block.language != "sh"
            || block.text.contains("make ")
            || DONE_BY_THE_TEST.iter().any(|done| block.text.contains(done))
        {
            continue;
        }
        run += 1;
        if SERVERS.iter().any(|server| block.text.contains(server)) {
            reader.start(&block.text);
            continue;
        }
        let shown = blocks
            .get(number + 1)
            .filter(|next| !next.begins_section && matches!(&*next.language, "json" | "text"));
        check(reader, page, &block.text, &shown.map(expected_parts).unwrap_or_default());
    }
    println!("{page}: ran {run} blocks");
    assert!(run > 0, "{page} has no block to run");
}

/// Runs a block and waits until its output, with that of a server, is what the page shows: syncs and webhooks take a
/// moment. A block that only reads runs again meanwhile.
fn check(reader: &Reader, page: &str, block: &str, expected: &BTreeSet<String>) {
    let only_reads = !block.contains(" -d ") && !block.contains("deploy") && !block.contains("create");
    let began = Instant::now();
    let mut output = reader.run(block);
    loop {
        let text = printed(&output) + &reader.server_output();
        let missing: Vec<_> = expected.iter().filter(|part| !text.contains(*part)).collect();
        if output.status.success() && missing.is_empty() {
            return;
        }
        assert!(
            began.elapsed() < PATIENCE && (only_reads || output.status.success()),
            "{page}: this block failed ({}), or its output lacks {missing:?}:\n{block}\n{text}",
            output.status
        );
        std::thread::sleep(Duration::from_millis(200));
        if only_reads {
            output = reader.run(block);
        }
    }
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}
