//! The command line: one file per command.
//!
//! Exit codes: 0 success, 1 failure, 2 invalid command line or variable, 3 the checked files contain mistakes.

// First, because the other modules use its macros.
#[macro_use]
mod output;

mod address;
mod admin;
mod audit;
mod build;
mod check;
mod client;
mod client_limits;
mod compiled;
mod connections;
mod database;
mod dead_letters;
mod deploy;
mod deployment;
mod dev;
mod dev_key;
mod dryrun;
mod env;
mod generate;
mod init;
mod installation;
mod json_input;
mod keys;
mod local_runs;
mod progress;
mod project;
mod providers;
mod recordings;
mod records;
mod retention;
mod rollback;
mod runs;
mod selection;
mod serve;
mod shell;
mod stop_signals;
mod style;
mod telemetry;
mod test;
mod trigger;
mod variables;
mod versions;
mod webhooks;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Exit code of a command that found mistakes in the files that it checked.
const MISTAKES: u8 = 3;
/// Exit code for an invalid command line or an invalid environment variable.
const MISUSED: u8 = 2;

const EXIT_CODES: &str = "Exit codes: 0 success, 1 failure, 2 invalid command line or variable, 3 mistakes in the files of \
                          the project";

/// Self-hosted runtime for product integrations: connects accounts, syncs their data, and runs actions
#[derive(Debug, Parser)]
#[command(name = "syncline", version, propagate_version = true, arg_required_else_help = true, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a host: the API and the scheduler
    Serve(Box<serve::ServeArgs>),
    /// Create a project in Rust, TypeScript or Python
    Init(init::InitArgs),
    /// Build, deploy and run a project after each change of its files
    Dev(Box<dev::DevArgs>),
    /// Validate syncline.toml, and check that its components contain the functions that it lists
    Check(check::CheckArgs),
    /// Write the types of the models that syncline.toml declares, in the language of each component
    Generate(generate::GenerateArgs),
    /// Build the components and write the bundle
    Build(build::BuildArgs),
    /// Run one function against the provider, and show what it would save, without a deployment
    Dryrun(Box<dryrun::DryrunArgs>),
    /// Replay the recordings of a project, and compare the results
    Test(test::TestArgs),
    /// Show what a bundle would change on a host, and deploy it
    Deploy(deploy::DeployArgs),
    /// List the deployed versions of bundles: who deployed them, when, and which is active
    Versions(versions::VersionsArgs),
    /// Show what an earlier version of a bundle would change, and deploy it again
    Rollback(rollback::RollbackArgs),
    /// List, show, import and delete connections
    Connections(connections::ConnectionsArgs),
    /// List records, and distribute the records database over several nodes
    Records(records::RecordsArgs),
    /// Run syncs now
    Trigger(trigger::TriggerArgs),
    /// Run an action and print its output
    Action(trigger::ActionArgs),
    /// Print the log of the newest run, and of later ones
    Logs(runs::LogsArgs),
    /// Create accounts of the dashboard
    Admin(admin::AdminArgs),
    /// Manage environments, their settings and variables
    Env(env::EnvArgs),
    /// Manage secret keys and encryption keys
    Keys(keys::KeysArgs),
    /// List providers and check provider files
    Providers(providers::ProvidersArgs),
    /// Show runs and their logs, approve held deletions, and record runs
    Runs(runs::RunsArgs),
    /// Show and export the audit log: who changed what, and who read credentials
    Audit(audit::AuditArgs),
    /// Show, save or drop records that did not match their model
    DeadLetters(dead_letters::DeadLettersArgs),
    /// Show and repeat outbound webhooks; show and replay provider webhooks
    Webhooks(webhooks::WebhooksArgs),
    /// Print the completions of a shell
    Completions(shell::CompletionsArgs),
    /// Write the manual pages
    Man(shell::ManArgs),
    /// The compiler process, which the host starts itself
    #[command(hide = true)]
    CompileComponent {
        /// File with the machine code of functions that were compiled before
        functions: Option<PathBuf>,
    },
}

/// The outcome of a command that did not fail.
enum Done {
    Successful,
    /// The checked files contain mistakes, which the command has printed.
    WithMistakes,
}

pub fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => return refuse(&error),
    };
    if let Command::CompileComponent { functions } = command {
        return exit_code(syncline_sandbox::run_compiler(functions.as_deref()));
    }
    // rustls is linked with more than one cryptography library; this selects the one to use.
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        unreachable!("nothing selected a TLS library earlier");
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: could not start the worker threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    let done = match command {
        // The private Postgres must be started from a thread that lives as long as the process.
        Command::Serve(args) => runtime.block_on(serve::run(*args)),
        Command::Dev(args) => runtime.block_on(dev::run(*args)),
        Command::Check(args) => runtime.block_on(check::run(args)),
        Command::Build(args) => runtime.block_on(build::run(args)),
        Command::Dryrun(args) => runtime.block_on(dryrun::run(*args)),
        Command::Test(args) => runtime.block_on(test::run(args)),
        Command::Deploy(args) => runtime.block_on(deploy::run(args)),
        Command::Versions(args) => runtime.block_on(versions::run(args)),
        Command::Rollback(args) => runtime.block_on(rollback::run(args)),
        Command::Connections(args) => runtime.block_on(connections::run(args)),
        Command::Records(args) => runtime.block_on(records::run(args)),
        Command::Trigger(args) => runtime.block_on(trigger::trigger(args)),
        Command::Action(args) => runtime.block_on(trigger::action(args)),
        Command::Logs(args) => runtime.block_on(runs::logs(args)),
        Command::Env(args) => runtime.block_on(env::run(args)),
        Command::Admin(args) => runtime.block_on(admin::run(args)),
        Command::Keys(args) => runtime.block_on(keys::run(args)),
        Command::Audit(args) => runtime.block_on(audit::run(args)),
        Command::Runs(args) => runtime.block_on(runs::run(args)),
        Command::DeadLetters(args) => runtime.block_on(dead_letters::run(args)),
        Command::Webhooks(args) => runtime.block_on(webhooks::run(args)),
        Command::Providers(args) => providers::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::Init(args) => init::run(&args),
        Command::Completions(args) => Ok(shell::print_completions(&args)),
        Command::Man(args) => shell::write_man_pages(&args),
        Command::CompileComponent { .. } => unreachable!("handled above"),
    };
    match done {
        Ok(_) if output::is_lost() => ExitCode::FAILURE,
        Ok(Done::Successful) => ExitCode::SUCCESS,
        Ok(Done::WithMistakes) => ExitCode::from(MISTAKES),
        Err(error) => {
            print_failure(&error);
            ExitCode::FAILURE
        }
    }
}

/// Prints an error with its causes.
fn print_failure(error: &anyhow::Error) {
    eprintln!("{} {error}", style::error_label());
    for cause in error.chain().skip(1) {
        eprintln!("  because: {cause}");
    }
}

/// Prints what is wrong with the command line. A request for help is printed as it is.
fn refuse(error: &clap::Error) -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    match variables::explain(error, &Cli::command(), &arguments) {
        Some(problem) => {
            eprintln!("{} {problem}", style::error_label());
            ExitCode::from(MISUSED)
        }
        None => error.exit(),
    }
}

fn exit_code(status: i32) -> ExitCode {
    ExitCode::from(u8::try_from(status).unwrap_or(1))
}
