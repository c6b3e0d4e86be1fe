//! The command line: one file per command.
//!
//! Exit codes: 0 done, 1 it failed, 2 the command line is wrong, 3 what was checked has mistakes.

// First, since the others print with its macros.
#[macro_use]
mod output;

mod address;
mod build;
mod check;
mod client;
mod database;
mod dead_letters;
mod deploy;
mod env;
mod installation;
mod keys;
mod project;
mod providers;
mod retention;
mod runs;
mod serve;
mod stop_signals;
mod telemetry;
mod variables;
mod webhooks;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Exit code of a command that found mistakes in what it was given.
const MISTAKES: u8 = 3;
/// Exit code of a command line, or of a variable, that is wrong.
const MISUSED: u8 = 2;

/// Product integrations as WebAssembly: connects accounts, keeps copies of their data fresh, and acts on them.
#[derive(Debug, Parser)]
#[command(name = "syncline", version, propagate_version = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the host: the API and the scheduler
    Serve(Box<serve::ServeArgs>),
    /// Check syncline.toml, and that its components have the functions that it names
    Check(check::CheckArgs),
    /// Build the functions and write the bundle
    Build(build::BuildArgs),
    /// Show what a bundle would change on a host, and deploy it
    Deploy(deploy::DeployArgs),
    /// Make, list, delete and set up environments, and set their variables
    Env(env::EnvArgs),
    /// Make, list and revoke secret keys; make encryption keys, and rotate what they seal
    Keys(keys::KeysArgs),
    /// List the providers that connections can be made to, and check files of your own
    Providers(providers::ProvidersArgs),
    /// Look at what was run, and at what it said
    Runs(runs::RunsArgs),
    /// Look at records that were set aside because they do not fit their model, and save or drop them
    DeadLetters(dead_letters::DeadLettersArgs),
    /// Look at the webhooks that were sent, and send them again
    Webhooks(webhooks::WebhooksArgs),
    /// The compiling process, which the host starts for itself
    #[command(hide = true)]
    CompileComponent,
}

/// What a command ends with.
enum Done {
    Well,
    /// What was checked has mistakes, which were shown.
    WithMistakes,
}

pub fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => return refuse(&error),
    };
    if let Command::CompileComponent = command {
        return exit_code(syncline_sandbox::run_compiler());
    }
    // Two libraries of TLS are linked in parts; this is the one that is used.
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        unreachable!("nothing has chosen a TLS library before");
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: the host could not start its threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    let done = match command {
        // Its private Postgres must be started from a thread that lives as long as the process.
        Command::Serve(args) => runtime.block_on(serve::run(*args)),
        Command::Check(args) => runtime.block_on(check::run(args)),
        Command::Build(args) => runtime.block_on(build::run(args)),
        Command::Deploy(args) => runtime.block_on(deploy::run(args)),
        Command::Env(args) => runtime.block_on(env::run(args)),
        Command::Keys(args) => runtime.block_on(keys::run(args)),
        Command::Runs(args) => runtime.block_on(runs::run(args)),
        Command::DeadLetters(args) => runtime.block_on(dead_letters::run(args)),
        Command::Webhooks(args) => runtime.block_on(webhooks::run(args)),
        Command::Providers(args) => providers::run(&args),
        Command::CompileComponent => unreachable!("handled above"),
    };
    match done {
        Ok(_) if output::is_lost() => ExitCode::FAILURE,
        Ok(Done::Well) => ExitCode::SUCCESS,
        Ok(Done::WithMistakes) => ExitCode::from(MISTAKES),
        Err(error) => {
            eprintln!("error: {error}");
            for cause in error.chain().skip(1) {
                eprintln!("  because: {cause}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Tells what is wrong with the command line; asking for help is not.
fn refuse(error: &clap::Error) -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    match variables::explain(error, &Cli::command(), &arguments) {
        Some(problem) => {
            eprintln!("error: {problem}");
            ExitCode::from(MISUSED)
        }
        None => error.exit(),
    }
}

fn exit_code(status: i32) -> ExitCode {
    ExitCode::from(u8::try_from(status).unwrap_or(1))
}
