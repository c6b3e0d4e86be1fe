//! The tutorials "Your first project in …": their shell blocks work in order, as a reader would run them. A server on
//! this machine takes the place of GitHub, and the packages of the checkout that of the package registries.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use crate::support::new_project::{NewProject, Running, issue_server, printed};
use crate::support::{Host, HostOptions, PythonServer, SECRET_KEY, TestDatabase, free_port, repository};
use crate::tutorials::{Block, blocks};

/// What the test does in another way than the page: the program is built, packages are installed, and the host of the
/// team is one of the test.
const DONE_BY_THE_TEST: [&str; 2] = ["make build", "SYNCLINE_SECRET_KEY="];
const INSTALLATIONS: [&str; 3] = ["npm install", "python3 -m venv", "pip install"];
const PATIENCE: Duration = Duration::from_secs(120);

struct Reader {
    language: &'static str,
    provider: PythonServer,
    project: NewProject,
    team: Host,
    dev: Option<Running>,
    _db: TestDatabase,
}

impl Reader {
    async fn new(language: &'static str) -> Self {
        let (db, provider) = (TestDatabase::create().await, issue_server().await);
        let team = HostOptions::new()
            .database(&db)
            .variable("SYNCLINE_EGRESS_ALLOW", &provider.address())
            .spawn()
            .await;
        let mut project = NewProject::empty(&provider);
        project.set("SYNCLINE_URL", &format!("http://127.0.0.1:{}", free_port()));
        Self { language, provider, project, team, dev: None, _db: db }
    }

    /// Runs a shell block, and waits until its output is what the page shows.
    async fn run(&mut self, block: &str, expected: &BTreeSet<String>) {
        if block.trim_end() == "syncline dev" {
            let command = self.project.shell("cd issues && exec syncline dev");
            let mut dev = self.project.spawn(command, "dev");
            for part in expected {
                dev.wait_for(part, 1).await;
            }
            self.dev = Some(dev);
            return;
        }
        let creates = block.contains("syncline init");
        let lines = block.lines().filter(|line| !INSTALLATIONS.iter().any(|command| line.contains(command)));
        let script: Vec<String> = lines
            .map(|line| if line == "syncline deploy" { format!("{line} --yes") } else { line.to_owned() })
            .collect();
        let folder = if creates { "." } else { "issues" };
        let script = format!("set -o errexit\ncd {folder}\n{}", script.join("\n"));
        let began = Instant::now();
        loop {
            let output = self.project.shell(&script).output().expect("bash can be run");
            let text = printed(&output);
            let missing: Vec<_> = expected.iter().filter(|part| !text.contains(*part)).collect();
            if output.status.success() && missing.is_empty() {
                break;
            }
            // A run takes a moment, so reading is repeated.
            assert!(
                began.elapsed() < PATIENCE && block.starts_with("syncline records list"),
                "this block failed ({}), or its output lacks {missing:?}:\n{block}\n{text}",
                output.status
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        if creates {
            self.project.prepare(self.language, &self.provider);
        }
    }

    /// Does what a page says.
    async fn read(&mut self, page: &str) {
        let text = fs::read_to_string(repository(page)).expect("the page is there");
        let blocks = blocks(&text);
        let mut ran = 0;
        for (number, block) in blocks.iter().enumerate() {
            match &*block.language {
                "diff" => self.change(block).await,
                "sh" if block.text.contains("SYNCLINE_URL=") => self.move_to_the_team().await,
                "sh" if !DONE_BY_THE_TEST.iter().any(|done| block.text.contains(done)) => {
                    let shown = blocks.get(number + 1).filter(|next| !next.begins_section);
                    let shown = shown.filter(|next| matches!(&*next.language, "json" | "text"));
                    self.run(&block.text, &shown.map(expected_parts).unwrap_or_default()).await;
                    ran += 1;
                }
                _ => {}
            }
        }
        assert_eq!(ran, 10, "the number of blocks to run in {page}");
    }

    /// Changes a file as the block shows, and waits until `syncline dev` has run the new version.
    async fn change(&mut self, block: &Block) {
        let file = block.file.as_ref().expect("the sentence before the block names the file");
        // A line that begins with a space is on both sides.
        let side = |sign: char| {
            let lines = block.text.lines().filter_map(|line| line.strip_prefix([sign, ' ']));
            lines.collect::<Vec<_>>().join("\n")
        };
        let dev = self.dev.as_mut().expect("`syncline dev` is running");
        let cycles = dev.printed().matches("\nwatching ").count();
        self.project.edit(file, &side('-'), &side('+'));
        dev.wait_for("\nwatching ", cycles + 1).await;
    }

    /// Stops `syncline dev`, and uses the host of the team from now on.
    async fn move_to_the_team(&mut self) {
        let dev = self.dev.take().expect("`syncline dev` is running");
        let (status, output) = dev.interrupt().await;
        assert_eq!(status, Some(0), "{output}");
        self.project.set("SYNCLINE_URL", self.team.base_url());
        self.project.set("SYNCLINE_SECRET_KEY", SECRET_KEY);
    }
}

/// The words of a shown text, and the keys of shown JSON, without what differs from run to run.
fn expected_parts(block: &Block) -> BTreeSet<String> {
    let pattern = if block.language == "json" {
        r#"("[a-z_]+"):"#
    } else {
        r"(?:^|\s)([A-Za-z]{4,})(?:[\s,;]|:\s|:$|$)"
    };
    let pattern = regex::Regex::new(pattern).expect("the pattern is valid");
    block.text.lines().flat_map(|line| pattern.captures_iter(line)).map(|found| found[1].to_owned()).collect()
}

#[tokio::test]
async fn every_block_of_the_tutorial_in_rust_works() {
    Reader::new("rust").await.read("docs/tutorials/first-project-in-rust.md").await;
}

#[tokio::test]
async fn every_block_of_the_tutorial_in_typescript_works() {
    Reader::new("typescript").await.read("docs/tutorials/first-project-in-typescript.md").await;
}

#[tokio::test]
async fn every_block_of_the_tutorial_in_python_works() {
    Reader::new("python").await.read("docs/tutorials/first-project-in-python.md").await;
}
