//! Commands that pages show for copying.

use std::fmt::Write;

/// A command that calls the API with a secret key from the environment. `headers` are names with their values, and
/// `arguments` are further arguments of `curl`.
pub(crate) fn api_call(
    public_url: &str,
    path: &str,
    headers: &[(&str, &str)],
    arguments: &[(&str, String)],
) -> String {
    let mut command =
        format!("curl {public_url}{path} \\\n  --header \"Authorization: Bearer $SYNCLINE_SECRET_KEY\"");
    for (name, value) in headers {
        let _ = write!(command, " \\\n  --header {}", quoted(&format!("{name}: {value}")));
    }
    for (option, value) in arguments {
        let _ = write!(command, " \\\n  {option} {}", quoted(value));
    }
    command
}

/// A text in quotes for a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_cannot_end_its_quotes() {
        assert_eq!(quoted("it's"), r"'it'\''s'");
        let command =
            api_call("http://host", "/records", &[("Connection-Id", "a'b")], &[("--data", "x=1".to_owned())]);
        assert_eq!(
            command,
            "curl http://host/records \\\n  --header \"Authorization: Bearer $SYNCLINE_SECRET_KEY\" \\\n  \
             --header 'Connection-Id: a'\\''b' \\\n  --data 'x=1'"
        );
    }
}
