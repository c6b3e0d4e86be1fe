//! `syncline completions` and `syncline man`: files for the shell and for `man`.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, Done, output};

#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// Shell for which the completions are
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// Folder for the pages, which is created
    folder: PathBuf,
}

/// Prints the completions of a shell.
pub(super) fn print_completions(args: &CompletionsArgs) -> Done {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "syncline", &mut script);
    output::print(format_args!("{}", String::from_utf8_lossy(&script)));
    Done::Successful
}

/// Writes a page for each command.
pub(super) fn write_man_pages(args: &ManArgs) -> anyhow::Result<Done> {
    let write = || {
        std::fs::create_dir_all(&args.folder)?;
        clap_mangen::generate_to(Cli::command(), &args.folder)
    };
    write().with_context(|| format!("could not write the pages to {}", args.folder.display()))?;
    println!("wrote the manual pages to {}", args.folder.display());
    Ok(Done::Successful)
}
