//! The environment variables of settings: finds unknown variables, and names the variable that holds an invalid
//! value.

use std::collections::BTreeSet;
use std::error::Error as _;
use std::ffi::OsString;
use std::num::{IntErrorKind, ParseIntError};

use clap::Command;
use clap::error::{ContextKind, ContextValue};

const PREFIX: &str = "SYNCLINE_";
/// Variables that do not belong to a flag.
const OTHERS: [&str; 1] = ["SYNCLINE_GUEST_TARGET"];

/// Explains an invalid value of a setting. clap always names the flag, so this names the variable if the value came
/// from there. Returns `None` for other mistakes.
pub(super) fn explain(error: &clap::Error, command: &Command, arguments: &[OsString]) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let flag = text(ContextKind::InvalidArg)?.split(' ').next()?;
    let value = text(ContextKind::InvalidValue)?;
    let source = error.source()?;
    let problem = match source.downcast_ref::<ParseIntError>().map(ParseIntError::kind) {
        None => source.to_string(),
        Some(IntErrorKind::PosOverflow | IntErrorKind::NegOverflow) => "the number is too large".to_owned(),
        Some(_) => "it must be a whole number".to_owned(),
    };
    let is_typed = arguments.iter().filter_map(|argument| argument.to_str()).any(|argument| {
        argument.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    });
    let variable = flag.strip_prefix("--").and_then(|long| variable_of(command, long));
    let setting = variable.filter(|_| !is_typed).unwrap_or_else(|| flag.to_owned());
    Some(format!("{setting} cannot be `{value}`: {problem}"))
}

/// Returns the variables with our prefix that no setting reads. Most of them are misspelt.
pub(super) fn unknown(command: &Command, set: impl Iterator<Item = String>) -> Vec<String> {
    let mut known: BTreeSet<String> = OTHERS.into_iter().map(str::to_owned).collect();
    add_variables(command, &mut known);
    let mut unknown: Vec<_> = set.filter(|name| name.starts_with(PREFIX) && !known.contains(name)).collect();
    unknown.sort();
    unknown
}

fn add_variables(command: &Command, known: &mut BTreeSet<String>) {
    let named = command.get_arguments().filter_map(|argument| argument.get_env()?.to_str());
    known.extend(named.map(str::to_owned));
    for subcommand in command.get_subcommands() {
        add_variables(subcommand, known);
    }
}

/// The variable that a flag reads, which is the same in every command.
fn variable_of(command: &Command, long: &str) -> Option<String> {
    let own = command.get_arguments().find(|argument| argument.get_long() == Some(long));
    match own.and_then(clap::Arg::get_env) {
        Some(name) => name.to_str().map(str::to_owned),
        None => command.get_subcommands().find_map(|subcommand| variable_of(subcommand, long)),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::Cli;
    use super::*;

    fn refusal(arguments: &[&str]) -> String {
        let arguments: Vec<OsString> = arguments.iter().map(Into::into).collect();
        let error = Cli::command().try_get_matches_from(&arguments).expect_err("the command line is invalid");
        explain(&error, &Cli::command(), &arguments).expect("the mistake is an invalid value")
    }

    #[test]
    fn an_invalid_value_is_explained() {
        for (flag, value, problem) in [
            ("--max-syncs", "many", "it must be a whole number"),
            ("--lease-seconds", "1.5", "it must be a whole number"),
            ("--grace-seconds", "99999999999999999999", "the number is too large"),
            ("--listen", "3000", "it must be an IP address and a port, such as 127.0.0.1:3003"),
            ("--listen", "localhost:3000", "it must be an IP address and a port, such as 127.0.0.1:3003"),
            ("--metrics-listen", "9090", "it must be an IP address and a port, such as 127.0.0.1:3003"),
            ("--public-url", "example.com", "it must be an address such as https://syncline.example.com"),
            ("--connect-url", "foo", "it must be an address such as https://syncline.example.com"),
            ("--record-metadata-key", "id", "`id` is reserved for the record's id; choose another name"),
            ("--record-metadata-key", "", "it must consist of 1 to 64 letters, digits, `_` and `-`"),
            ("--record-metadata-key", "a b", "it must consist of 1 to 64 letters, digits, `_` and `-`"),
        ] {
            let message = refusal(&["syncline", "serve", &format!("{flag}={value}")]);
            assert_eq!(message, format!("{flag} cannot be `{value}`: {problem}"));
        }
        let message = refusal(&["syncline", "runs", "list", "--url", "127.0.0.1:41313"]);
        assert_eq!(
            message,
            "--url cannot be `127.0.0.1:41313`: it must be an address such as http://127.0.0.1:3003"
        );
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for (flag, value) in [
            ("--client-timeout-seconds", "18446744073709551614"),
            ("--proxy-timeout-seconds", "18446744073709551614"),
            ("--lease-seconds", "18446744073709551614"),
            ("--grace-seconds", "18446744073709551614"),
            ("--action-result-seconds", "18446744073709551614"),
            ("--minimum-interval-seconds", "18446744073709551614"),
            ("--database-connections", "4294967295"),
            ("--max-syncs", "4294967295"),
            ("--max-async-actions", "4294967295"),
            ("--max-invocations", "4294967295"),
            ("--max-change-readers", "4294967295"),
        ] {
            let message = refusal(&["syncline", "serve", &format!("{flag}={value}")]);
            assert!(
                message.starts_with(&format!("{flag} cannot be `{value}`: {value} is not in ")),
                "{message}"
            );
        }
    }

    #[test]
    fn redelivery_needs_an_id_or_a_time() {
        for (command, flag) in [("redeliver", "--failed-since"), ("replay", "--since")] {
            let message = Cli::command().try_get_matches_from(["syncline", "webhooks", command]).unwrap_err();
            assert!(message.to_string().contains(&format!("<ID|{flag} <TIME>>")), "{message}");
            let both = ["syncline", "webhooks", command, "x", flag, "2026-03-01T09:00:00Z"];
            assert!(Cli::command().try_get_matches_from(both).is_err());
        }
    }

    #[test]
    fn an_invalid_value_that_was_not_typed_is_reported_with_its_variable() {
        let arguments = ["syncline", "serve", "--max-syncs=many"];
        let error = Cli::command().try_get_matches_from(arguments).expect_err("the command line is invalid");
        let message = explain(&error, &Cli::command(), &["syncline".into(), "serve".into()]);
        let message = message.expect("the mistake is an invalid value");
        assert_eq!(message, "SYNCLINE_MAX_SYNCS cannot be `many`: it must be a whole number");
    }

    #[test]
    fn variables_that_no_setting_reads_are_found() {
        let set =
            ["SYNCLINE_MAX_SINCS", "SYNCLINE_MAX_SYNCS", "SYNCLINE_GUEST_TARGET", "PATH", "SYNCLINE_URL"];
        assert_eq!(unknown(&Cli::command(), set.into_iter().map(str::to_owned)), ["SYNCLINE_MAX_SINCS"]);
    }
}
