//! `syncline env show` and `syncline env set`.

use anyhow::{Context, bail};
use serde_json::{Map, Value, json};

use super::{EnvironmentArgs, Installation};
use syncline_auth::SettingsChange;

pub(super) async fn show(args: &EnvironmentArgs, secrets: bool, as_json: bool) -> anyhow::Result<()> {
    let installation = Installation::open(&args.database).await?;
    let environment = installation.environment(&args.environment)?;
    let settings = installation.environments.settings(environment.pk).await?;
    let Installation { environments, actor, .. } = &installation;
    let keys = if secrets {
        environments.reveal_signing_keys(environment.pk, actor).await?
    } else {
        environments.signing_keys(environment.pk).await?
    };
    let keys: Vec<Value> = keys
        .iter()
        .map(|key| {
            let mut shown =
                json!({ "id": key.id, "created_at": key.created_at, "expires_at": key.expires_at });
            if secrets {
                shown["key"] = key.expose_text().into();
            }
            shown
        })
        .collect();
    let mut shown = json!({ "id": environment.id, "name": environment.name });
    let members = shown.as_object_mut().context("the settings are an object")?;
    if let Value::Object(settings) = serde_json::to_value(&*settings)? {
        members.extend(settings);
    }
    members.insert("webhook_signing_keys".to_owned(), keys.into());
    if as_json {
        println!("{}", serde_json::to_string_pretty(&shown)?);
    } else {
        print_lines(&shown);
    }
    installation.close().await
}

/// Applies `name=value` pairs.
pub(super) async fn set(args: &EnvironmentArgs, pairs: &[String]) -> anyhow::Result<()> {
    let change = parse(pairs)?;
    let installation = Installation::open(&args.database).await?;
    let environment = installation.environment(&args.environment)?;
    installation.environments.change_settings(environment.pk, &change, &installation.actor).await?;
    let names: Vec<_> =
        pairs.iter().filter_map(|pair| Some(format!("`{}`", pair.split_once('=')?.0))).collect();
    println!("set {} of environment `{}`", names.join(", "), environment.name);
    installation.close().await
}

fn parse(pairs: &[String]) -> anyhow::Result<SettingsChange> {
    let mut members = Map::new();
    for pair in pairs {
        let (name, value) = pair.split_once('=').with_context(|| {
            format!("`{pair}` must have the form SETTING=VALUE, such as on_sync_error=false")
        })?;
        let value = match value {
            "" => Value::Null,
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            text => text.into(),
        };
        if members.insert(name.to_owned(), value).is_some() {
            bail!("`{name}` is set twice; keep one of the two");
        }
    }
    serde_path_to_error::deserialize(Value::Object(members)).map_err(|error| match error.path().to_string() {
        path if path == "." || path == "?" => anyhow::anyhow!("{}", error.inner()),
        path => match error.inner().to_string() {
            problem if problem.ends_with("expected a boolean") => {
                anyhow::anyhow!("`{path}`: must be true or false")
            }
            problem => anyhow::anyhow!("`{path}`: {problem}"),
        },
    })
}

fn print_lines(shown: &Value) {
    for (name, value) in shown.as_object().into_iter().flatten() {
        match value {
            Value::Array(keys) => {
                for key in keys {
                    let text = key["key"].as_str().unwrap_or("***");
                    let until = key["expires_at"].as_str().map(|end| format!(", signs until {end}"));
                    println!("{name}: {text}{}", until.unwrap_or_default());
                }
            }
            Value::String(text) => println!("{name}: {text}"),
            Value::Null => println!("{name}:"),
            other => println!("{name}: {other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(pairs: &[&str]) -> anyhow::Result<Value> {
        let pairs: Vec<String> = pairs.iter().map(|pair| (*pair).to_owned()).collect();
        Ok(serde_json::to_value(parse(&pairs)?)?)
    }

    #[test]
    fn pairs_are_parsed_as_settings() {
        let pairs = ["webhook_url=https://example.com/?a=b", "on_sync_error=false", "connect_ui_title="];
        let change = json!({
            "webhook_url": "https://example.com/?a=b", "on_sync_error": false, "connect_ui_title": null,
        });
        assert_eq!(parsed(&pairs).unwrap(), change);
        for (pair, part) in [
            ("webhook_url", "must have the form SETTING=VALUE"),
            ("webhook_url=example", "`webhook_url`: must be a URL"),
            ("on_sync_error=maybe", "`on_sync_error`: must be true or false"),
            ("on_sync_error=", "`on_sync_error`: must be true or false"),
            ("hooks=x", "unknown field `hooks`"),
        ] {
            let refusal = parsed(&[pair]).unwrap_err().to_string();
            assert!(refusal.contains(part), "{refusal}");
        }
        assert!(parsed(&["on_sync_error=true", "on_sync_error=false"]).is_err());
    }
}
