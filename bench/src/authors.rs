//! Measures what authors wait for: from `syncline init` to the first records, and from saving a file to the end of the
//! run of the new version, in each language.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::Bench;
use crate::host::free_address;
use crate::report::{Report, Target};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// Each save of a file takes one of these rounds.
const ROUNDS: usize = 5;
const LONGEST: Duration = Duration::from_secs(180);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The page size in a new project.
const LONGEST_PAGE: usize = 100;
/// What `syncline dev` prints at the end of a successful run.
const RAN: &str = "sync issues: success";

struct Language {
    name: &'static str,
    shown: &'static str,
    source: &'static str,
    /// Starts a comment.
    comment: &'static str,
    /// Seconds from saving a file to the end of the run.
    target: f64,
}

const LANGUAGES: [Language; 3] = [
    Language { name: "rust", shown: "Rust", source: "src/lib.rs", comment: "//", target: 2.0 },
    Language { name: "typescript", shown: "TypeScript", source: "src/index.ts", comment: "//", target: 3.0 },
    Language { name: "python", shown: "Python", source: "main.py", comment: "#", target: 3.0 },
];

pub async fn measure(bench: &Bench) -> Result<Report> {
    let provider = Provider::start().await?;
    let about = "a project of `syncline init` with 250 issues of a provider on this machine; the toolchain and packages are \
                 installed, and nothing was compiled before";
    let mut report = Report::new("authors", about.to_owned());
    for language in &LANGUAGES {
        let Language { shown, target, .. } = language;
        let measured = Author::measure(bench, &provider, language).await?;
        report.check(
            format!("{shown}: seconds from `init` to first records"),
            &[measured.first],
            Target::AtMost(60.0),
        );
        report.check(
            format!("{shown}: seconds from saving to the end of the run"),
            &measured.saves,
            Target::AtMost(*target),
        );
        report.check(
            format!("{shown}: lines of the sync, with imports"),
            &[measured.lines],
            Target::AtMost(25.0),
        );
        report
            .row(*shown)
            .metric("seconds to first records", vec![measured.first])
            .metric("seconds from save to run", measured.saves)
            .metric("of these, to build", measured.builds)
            .metric("of these, to deploy", measured.deployments)
            .metric("lines", vec![measured.lines]);
    }
    Ok(report)
}

/// The server that takes the place of GitHub.
struct Provider {
    address: String,
    _process: Child,
}

impl Provider {
    async fn start() -> Result<Self> {
        let address = free_address()?;
        let port = address.rsplit(':').next().context("an address has a port")?;
        let process = Command::new("python3")
            .arg(Path::new(REPOSITORY).join("tests/servers/issues.py"))
            .arg(port)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("could not start Python")?;
        let started = Instant::now();
        while TcpStream::connect(&address).await.is_err() {
            ensure!(started.elapsed() < LONGEST, "the provider does not listen");
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(Self { address, _process: process })
    }
}

#[derive(Default)]
struct Measured {
    first: f64,
    saves: Vec<f64>,
    builds: Vec<f64>,
    deployments: Vec<f64>,
    lines: f64,
}

/// A project with a running `syncline dev`.
struct Author {
    folder: TempDir,
    dev: Child,
}

impl Author {
    async fn measure(bench: &Bench, provider: &Provider, language: &Language) -> Result<Measured> {
        let folder = tempfile::tempdir()?;
        // A private Postgres of root runs as another user.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o711))?;
        let began = Instant::now();
        let init = ["init", "issues", "--language", language.name, "--sdk"];
        let created = command(bench, folder.path(), provider)?
            .current_dir(&folder)
            .args(init)
            .arg(Path::new(REPOSITORY).join("guest-sdk"))
            .output()
            .await?;
        ensure!(created.status.success(), "init failed: {}", String::from_utf8_lossy(&created.stderr));
        let project = folder.path().join("issues");
        install(language, &project)?;
        let config = project.join("syncline.toml");
        let text = fs::read_to_string(&config)?;
        fs::write(&config, text.replace("https://api.github.com", &format!("http://{}", provider.address)))?;
        let log = File::create(folder.path().join("log"))?;
        let dev = command(bench, folder.path(), provider)?
            .arg("dev")
            .current_dir(&project)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let mut author = Self { folder, dev };
        author.wait_for_runs(1).await?;
        let mut measured = Measured { first: began.elapsed().as_secs_f64(), ..Measured::default() };

        let source = project.join(language.source);
        measured.lines = lines_of_sync(&fs::read_to_string(&source)?, language) as f64;
        // The first build after an edit also creates what later ones use again.
        for round in 0..=ROUNDS {
            author.wait_until_watching(round + 1).await?;
            // Another page size changes the code of the function, but not the records.
            let text = fs::read_to_string(&source)?;
            let (before, after) =
                ((LONGEST_PAGE - round).to_string(), (LONGEST_PAGE - round - 1).to_string());
            ensure!(text.contains(&before), "the page size is not in the source");
            fs::write(&source, text.replacen(&before, &after, 1))?;
            let saved = Instant::now();
            author.wait_for_runs(round + 2).await?;
            if round > 0 {
                measured.saves.push(saved.elapsed().as_secs_f64());
                let (build, deployment) = author.last_times()?;
                measured.builds.push(build);
                measured.deployments.push(deployment);
            }
        }
        author.stop().await?;
        Ok(measured)
    }

    fn printed(&self) -> Result<String> {
        Ok(fs::read_to_string(self.folder.path().join("log"))?)
    }

    async fn wait_for_runs(&mut self, number: usize) -> Result<()> {
        self.wait_for(RAN, number).await
    }

    async fn wait_until_watching(&mut self, number: usize) -> Result<()> {
        self.wait_for("\nwatching ", number).await
    }

    async fn wait_for(&mut self, text: &str, number: usize) -> Result<()> {
        let started = Instant::now();
        loop {
            let printed = self.printed()?;
            if printed.matches(text).count() >= number {
                return Ok(());
            }
            if self.dev.try_wait()?.is_some() || started.elapsed() > LONGEST {
                bail!("`syncline dev` has ended, or takes too long:\n{printed}");
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// How long the last build and the last deployment took, as `syncline dev` prints it.
    fn last_times(&self) -> Result<(f64, f64)> {
        let printed = self.printed()?;
        let line =
            printed.lines().rfind(|line| line.starts_with("built in ")).context("nothing was built")?;
        let seconds: Vec<f64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        match seconds[..] {
            [build, .., deployment] => Ok((build, deployment)),
            _ => bail!("`{line}` has no times"),
        }
    }

    async fn stop(mut self) -> Result<()> {
        let process = self.dev.id().context("the process has ended")?;
        let process = Pid::from_raw(process.try_into()?).context("a process id is not 0")?;
        kill_process(process, Signal::INT)?;
        let status = tokio::time::timeout(LONGEST, self.dev.wait()).await??;
        ensure!(status.success(), "`syncline dev` did not stop in order: {status}");
        Ok(())
    }
}

/// `syncline` with a host of its own, and without caches of earlier builds.
fn command(bench: &Bench, folder: &Path, provider: &Provider) -> Result<Command> {
    let mut command = Command::new(&bench.syncline);
    let path = folder.join("address");
    if !path.exists() {
        fs::write(&path, free_address()?)?;
    }
    command
        .env_remove("DATABASE_URL")
        .env_remove("CARGO_TARGET_DIR")
        .env("CARGO_NET_OFFLINE", "true")
        .env("XDG_CACHE_HOME", folder.join("cache"))
        .env("SYNCLINE_URL", format!("http://{}", fs::read_to_string(&path)?))
        .env("SYNCLINE_DATA_DIR", folder.join("data"))
        .env("SYNCLINE_EGRESS_ALLOW", &provider.address)
        .kill_on_drop(true);
    Ok(command)
}

/// Makes the packages of the clone available, so that package registries are not measured.
fn install(language: &Language, project: &Path) -> Result<()> {
    let of_clone = |path: &str| -> PathBuf { Path::new(REPOSITORY).join(path) };
    match language.name {
        "rust" => {
            fs::copy(of_clone("examples/minimal/Cargo.lock"), project.join("Cargo.lock"))?;
        }
        "typescript" => {
            symlink(of_clone("examples/github/node_modules").canonicalize()?, project.join("node_modules"))?;
        }
        _ => symlink(of_clone(".venv").canonicalize()?, project.join(".venv"))?,
    }
    Ok(())
}

/// The lines up to the action, without empty ones, comments and documentation.
fn lines_of_sync(source: &str, language: &Language) -> usize {
    let is_code = |line: &&str| {
        let line = line.trim();
        !(line.is_empty()
            || line.starts_with(language.comment)
            || line.starts_with("/**")
            || line.starts_with("\"\"\""))
    };
    let end = ["#[action]", "const readIssue", "@action"].iter().find_map(|action| source.find(action));
    source[..end.unwrap_or(source.len())].lines().filter(is_code).count()
}
