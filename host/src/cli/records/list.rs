//! `syncline records list`: records of one model and connection.

use std::collections::BTreeMap;

use clap::Args;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::cli::Done;
use crate::cli::client::{HostArgs, ListArgs, Parameter};
use crate::cli::selection::{ConnectionArgs, explain};

#[derive(Debug, Args)]
pub(super) struct RecordListArgs {
    #[command(flatten)]
    host: HostArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
    /// Name of the model
    #[arg(long, short)]
    model: String,
    /// List records of this variant of the sync [default: base]
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    /// List only records whose last change is one of these: added, updated, deleted; separated by commas
    #[arg(long, value_name = "CHANGES")]
    filter: Option<String>,
    /// List only records that were modified at this time or later, such as 2026-03-01T09:00:00Z
    #[arg(long, value_name = "TIME")]
    modified_after: Option<String>,
    /// List only the record with this id; can be repeated
    #[arg(long = "id", value_name = "ID")]
    ids: Vec<String>,
    /// Begin after this cursor, which an earlier list has printed
    #[arg(long)]
    cursor: Option<String>,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, Deserialize)]
struct Page {
    records: Vec<Box<RawValue>>,
    next_cursor: Option<String>,
}

/// The members of a record's metadata that the list prints.
#[derive(Debug, Deserialize)]
struct Metadata {
    last_action: String,
    last_modified_at: String,
}

pub(super) async fn run(args: RecordListArgs) -> anyhow::Result<Done> {
    let client = args.host.client()?;
    let connection = args.connection.find(&client).await?;
    let client = client.for_connection(&connection);
    let limit = args.list.limit as usize;
    let mut records = Vec::new();
    let mut cursor = args.cursor.clone();
    // A page of long records has fewer than requested.
    loop {
        let left = (limit - records.len()).to_string();
        let filter: [Parameter<'_>; 6] = [
            ("model", Some(&args.model)),
            ("variant", args.variant.as_deref()),
            ("filter", args.filter.as_deref()),
            ("modified_after", args.modified_after.as_deref()),
            ("limit", Some(&left)),
            ("cursor", cursor.as_deref()),
        ];
        let ids: Vec<Parameter<'_>> = args.ids.iter().map(|id| ("ids", Some(&**id))).collect();
        let page = client.query::<Page>("records", &[&filter[..], &ids].concat()).await;
        let page = match page {
            Ok(page) => page,
            Err(error) => return Err(explain(&client, &connection.integration, &[args.model], error).await),
        };
        records.extend(page.records);
        cursor = page.next_cursor;
        if cursor.is_none() || records.len() >= limit {
            break;
        }
    }
    if args.list.json {
        let records: Vec<&str> = records.iter().map(|record| record.get()).collect();
        println!("[{}]", records.join(",\n "));
    } else {
        for record in &records {
            println!("{}", line(record)?);
        }
    }
    if let Some(cursor) = cursor {
        eprintln!("there are more records; to continue, add --cursor {cursor}");
    }
    Ok(Done::Successful)
}

/// The change, the time of the change, and the record without its metadata. Numbers keep all digits.
fn line(record: &RawValue) -> anyhow::Result<String> {
    let mut members: BTreeMap<String, Box<RawValue>> = serde_json::from_str(record.get())?;
    let metadata = |value: &RawValue| serde_json::from_str::<Metadata>(value.get()).ok();
    let found = members.iter().find_map(|(name, value)| Some((name.clone(), metadata(value)?)));
    let Some((name, Metadata { last_action, last_modified_at })) = found else {
        return Ok(record.get().to_owned());
    };
    members.remove(&name);
    Ok(format!("{last_action:7}  {last_modified_at}  {}", serde_json::to_string(&members)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_keeps_all_digits_and_leaves_out_the_metadata() {
        let record = r#"{"id": "1", "amount": 12345678901234567890.10,
            "_meta": {"last_action": "ADDED", "last_modified_at": "2026-03-01T09:00:00.000Z", "cursor": "x"}}"#;
        let record: Box<RawValue> = serde_json::from_str(record).unwrap();
        let expected = r#"ADDED    2026-03-01T09:00:00.000Z  {"amount":12345678901234567890.10,"id":"1"}"#;
        assert_eq!(line(&record).unwrap(), expected);
    }
}
