//! Benchmarks a host and its baselines on the same machine at the same time: `COPY` into the same table, the same
//! SQL without a host, and an HTTP server that does nothing. The ratio counts, because it is comparable between
//! machines.

mod action;
mod authors;
mod bare;
mod dashboard;
mod database;
mod density;
mod deployment;
mod footprint;
mod host;
mod http;
mod ingest;
mod intake;
mod load;
mod machine;
mod neighbour;
mod page_cost;
mod proxy;
mod read;
mod report;
mod scheduler;
mod stage;
mod tracking;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};

use self::database::Server;
use self::machine::Machine;
use self::report::Report;

/// The longest time for one benchmark. A benchmark that takes longer hangs and fails.
const LONGEST: Duration = Duration::from_secs(900);

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs benchmarks, prints tables and writes a JSON file for each.
    Measure(Measure),
    /// Serves prepared bytes, to measure the cost of HTTP alone.
    Bare(bare::Bare),
}

#[derive(Args)]
struct Measure {
    /// Benchmarks to run [default: all].
    benchmarks: Vec<Benchmark>,
    /// Uses a quarter of the records and shorter load tests, for a first look.
    #[arg(long)]
    quick: bool,
    /// Path of the host's binary.
    #[arg(long)]
    syncline: PathBuf,
    /// Path of the bundle of `bench/functions`.
    #[arg(long)]
    bundle: PathBuf,
    /// Path of the bundle of `bench/python`.
    #[arg(long)]
    python: PathBuf,
    /// Path of the bundle of the guest that misbehaves on purpose.
    #[arg(long)]
    hostile: PathBuf,
    /// Folder for results and logs.
    #[arg(long)]
    results: PathBuf,
    /// URL of a superuser of a Postgres server that nothing else uses.
    #[arg(long, env = "SYNCLINE_TEST_DATABASE_URL")]
    database_url: String,
}

#[derive(Clone, Copy, ValueEnum)]
enum Benchmark {
    Ingest,
    Read,
    PageCost,
    Tracking,
    Action,
    Proxy,
    Intake,
    Footprint,
    Scheduler,
    Density,
    Neighbour,
    Deployment,
    Dashboard,
    Authors,
}

/// The parts that all benchmarks use.
struct Bench {
    server: Server,
    syncline: PathBuf,
    bundle: PathBuf,
    python: PathBuf,
    hostile: PathBuf,
    results: PathBuf,
    scale: Scale,
    is_quick: bool,
}

/// The amount of work. Each measurement is made in rounds, alternating with its baselines, so that a temporary
/// disturbance affects all of them.
struct Scale {
    rounds: usize,
    records: u64,
    load: Duration,
}

impl Scale {
    const FULL: Self = Self { rounds: 3, records: 200_000, load: Duration::from_secs(4) };
    const QUICK: Self = Self { rounds: 3, records: 50_000, load: Duration::from_secs(2) };
}

#[tokio::main]
async fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Measure(measure) => measure.run().await,
        Command::Bare(bare) => bare.serve().await,
    }
}

impl Measure {
    async fn run(self) -> Result<()> {
        std::fs::create_dir_all(&self.results)?;
        let machine = Machine::look();
        let bench = Bench {
            server: Server::new(&self.database_url)?,
            syncline: self.syncline.canonicalize().context("the host's binary is missing")?,
            bundle: self.bundle.canonicalize().context("the bundle is missing")?,
            python: self.python.canonicalize().context("the bundle in Python is missing")?,
            hostile: self.hostile.canonicalize().context("the hostile guest's bundle is missing")?,
            results: self.results.canonicalize()?,
            is_quick: self.quick,
            scale: if self.quick { Scale::QUICK } else { Scale::FULL },
        };
        let postgres = bench.server.facts().await?;
        println!("{machine}; {postgres}");
        let benchmarks =
            if self.benchmarks.is_empty() { Benchmark::value_variants() } else { self.benchmarks.as_slice() };
        for benchmark in benchmarks {
            let report = tokio::time::timeout(LONGEST, benchmark.run(&bench))
                .await
                .with_context(|| format!("the benchmark did not finish within {} s", LONGEST.as_secs()))??;
            print!("\n{report}");
            report.write(&bench.results, &machine, &postgres)?;
        }
        Ok(())
    }
}

impl Benchmark {
    async fn run(self, bench: &Bench) -> Result<Report> {
        match self {
            Self::Ingest => ingest::measure(bench).await,
            Self::Read => read::measure(bench).await,
            Self::PageCost => page_cost::measure(bench).await,
            Self::Tracking => tracking::measure(bench).await,
            Self::Action => action::measure(bench).await,
            Self::Proxy => proxy::measure(bench).await,
            Self::Intake => intake::measure(bench).await,
            Self::Footprint => footprint::measure(bench).await,
            Self::Scheduler => scheduler::measure(bench).await,
            Self::Density => density::measure(bench).await,
            Self::Neighbour => neighbour::measure(bench).await,
            Self::Deployment => deployment::measure(bench).await,
            Self::Dashboard => dashboard::measure(bench).await,
            Self::Authors => authors::measure(bench).await,
        }
    }
}
