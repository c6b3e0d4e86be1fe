//! `syncline env vars`: variables of an environment. Values come from standard input or a file, never from the
//! command line, which every process of the machine can read.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use serde_json::json;

use super::{EnvironmentArgs, Installation};
use syncline_engine::{EnvironmentVariables, VariableValue};
use syncline_types::ids::VariableName;

#[derive(Debug, Args)]
pub(super) struct VarsArgs {
    #[command(subcommand)]
    command: VarsCommand,
}

#[derive(Debug, Subcommand)]
enum VarsCommand {
    /// List the names of the variables
    List {
        #[command(flatten)]
        environment: EnvironmentArgs,
        /// Include the values
        #[arg(long)]
        values: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Set a variable to the text on standard input, or set every variable of a file
    Set {
        #[command(flatten)]
        environment: EnvironmentArgs,
        #[arg(required_unless_present = "file")]
        name: Option<String>,
        /// File with lines NAME=value; blank lines and lines that start with `#` are ignored
        #[arg(long, value_name = "FILE", conflicts_with = "name")]
        file: Option<PathBuf>,
    },
    /// Remove a variable
    Unset {
        #[command(flatten)]
        environment: EnvironmentArgs,
        name: String,
    },
}

pub(super) async fn run(args: VarsArgs) -> anyhow::Result<()> {
    match args.command {
        VarsCommand::List { environment, values, json } => list(&environment, values, json).await,
        VarsCommand::Set { environment, name: Some(name), .. } => {
            let value = read_value()?;
            set(&environment, vec![(name.parse()?, value)]).await
        }
        VarsCommand::Set { environment, file, .. } => {
            let path = file.context("a name or a file is given")?;
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("could not read {}", path.display()))?;
            set(&environment, parse_file(&path, &text)?).await
        }
        VarsCommand::Unset { environment, name } => unset(&environment, &name.parse()?).await,
    }
}

async fn list(args: &EnvironmentArgs, values: bool, as_json: bool) -> anyhow::Result<()> {
    let installation = Installation::open(&args.database).await?;
    let environment = installation.environment(&args.environment)?;
    let stored = EnvironmentVariables::new(installation.store.clone());
    let variables: Vec<(String, Option<String>)> = if values {
        let revealed = stored.reveal(&environment, &installation.actor).await?;
        revealed.into_iter().map(|(name, value)| (name, Some(value))).collect()
    } else {
        stored.names(&environment).await?.into_iter().map(|name| (name, None)).collect()
    };
    if as_json {
        let listed: Vec<_> = variables
            .iter()
            .map(|(name, value)| match value {
                Some(value) => json!({ "name": name, "value": value }),
                None => json!({ "name": name }),
            })
            .collect();
        println!("{}", serde_json::to_string_pretty(&listed)?);
    } else {
        for (name, value) in variables {
            match value {
                Some(value) => println!("{name}={value}"),
                None => println!("{name}"),
            }
        }
    }
    installation.close().await
}

async fn set(args: &EnvironmentArgs, variables: Vec<(VariableName, VariableValue)>) -> anyhow::Result<()> {
    let installation = Installation::open(&args.database).await?;
    let environment = installation.environment(&args.environment)?;
    let stored = EnvironmentVariables::new(installation.store.clone());
    for (name, value) in &variables {
        stored.set(&environment, name, value, &installation.actor).await?;
        println!("set `{name}`");
    }
    installation.close().await
}

async fn unset(args: &EnvironmentArgs, name: &VariableName) -> anyhow::Result<()> {
    let installation = Installation::open(&args.database).await?;
    let environment = installation.environment(&args.environment)?;
    let stored = EnvironmentVariables::new(installation.store.clone());
    if !stored.delete(&environment, name, &installation.actor).await? {
        bail!(
            "environment `{}` has no variable `{name}`; `syncline env vars list` lists them",
            environment.name
        );
    }
    println!("removed `{name}`");
    installation.close().await
}

/// Reads standard input, without the line break that `echo` and editors append.
fn read_value() -> anyhow::Result<VariableValue> {
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .context("could not read the value from standard input as UTF-8 text")?;
    let value = text.strip_suffix('\n').map_or(&*text, |line| line.strip_suffix('\r').unwrap_or(line));
    VariableValue::new(value.to_owned()).context("the value on standard input is invalid")
}

/// Parses lines of `NAME=value`. The value is everything after the `=`, without the quotes if it is quoted.
fn parse_file(path: &Path, text: &str) -> anyhow::Result<Vec<(VariableName, VariableValue)>> {
    let mut variables = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.trim_start().starts_with('#') {
            continue;
        }
        // Only the line number is reported, because the line may contain a secret.
        let place = || format!("{}, line {}", path.display(), index + 1);
        let (name, value) =
            line.split_once('=').with_context(|| format!("{} does not have the form NAME=value", place()))?;
        let name = name.trim().parse().with_context(place)?;
        let value = value.trim();
        let unquoted = ['"', '\'']
            .into_iter()
            .find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote))
            .unwrap_or(value);
        variables.push((name, VariableValue::new(unquoted.to_owned()).with_context(place)?));
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_variable_on_each_line() {
        let text = "# ours\nTOKEN=a=b # c\n\n  QUOTED = \"x y \"\nSINGLE='\"'\nEMPTY=\n";
        let parsed = parse_file(Path::new(".env"), text).unwrap();
        let names: Vec<String> = parsed.iter().map(|(name, _)| name.to_string()).collect();
        assert_eq!(names, ["TOKEN", "QUOTED", "SINGLE", "EMPTY"]);
        let values: Vec<&str> = parsed.iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!(values, ["a=b # c", "x y ", "\"", ""]);
    }

    #[test]
    fn a_mistake_in_a_file_is_reported_without_its_text() {
        for text in ["A=1\nplanted", "A=1\n1planted=planted-value", "A=1\nB=planted\0"] {
            let error = parse_file(Path::new(".env"), text).err().expect("a mistake");
            let message = format!("{error:#}");
            assert!(message.contains(".env, line 2") && !message.contains("planted-value"), "{message}");
        }
    }
}
