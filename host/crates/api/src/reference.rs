//! Generates the tables of `docs/errors.md` and the file `docs/openapi.json` from the code, and checks that the OpenAPI
//! document is complete.
//!
//! `make docs` writes both files; the tests compare the committed versions.

use std::fmt::Write;

use strum::VariantArray;
use syncline_types::error_code::ErrorCode;

use syncline_web::status::statuses;

/// The codes of error responses, as a Markdown table.
fn request_codes() -> String {
    let mut table = "| Code | Status | Meaning | What to do |\n|---|---|---|---|\n".to_owned();
    for code in ErrorCode::VARIANTS.iter().filter(|code| !statuses(**code).is_empty()) {
        let mut numbers: Vec<_> = statuses(*code).iter().map(|status| status.as_u16().to_string()).collect();
        numbers.sort();
        let numbers = numbers.join(", ");
        let _infallible =
            writeln!(table, "| `{code}` | {numbers} | {} | {} |", code.meaning(), code.remedy());
    }
    table
}

/// The codes that occur only in runs and connections, as a Markdown table.
fn other_codes() -> String {
    let mut table = "| Code | Meaning | What to do |\n|---|---|---|\n".to_owned();
    for code in ErrorCode::VARIANTS.iter().filter(|code| statuses(**code).is_empty()) {
        let _infallible = writeln!(table, "| `{code}` | {} | {} |", code.meaning(), code.remedy());
    }
    table
}

/// Replaces the text between the markers of a generated section. `None` if the page lacks the markers.
fn fill(page: &str, name: &str, content: &str) -> Option<String> {
    let (begin, end) = (format!("<!-- generated: {name} -->\n"), format!("<!-- end of {name} -->"));
    let (before, rest) = page.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}{content}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use serde_json::{Value, json};

    use super::*;

    fn docs(file: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs").join(file)
    }

    /// Compares a file with its expected content. Writes it first if `SYNCLINE_WRITE_DOCS` is set.
    fn compare(file: &str, expected: &str) {
        if std::env::var_os("SYNCLINE_WRITE_DOCS").is_some() {
            std::fs::write(docs(file), expected).unwrap();
        }
        let found = std::fs::read_to_string(docs(file)).unwrap_or_default();
        assert!(found == expected, "docs/{file} differs from what the code generates; run `make docs`");
    }

    #[test]
    fn the_error_reference_is_generated_from_the_codes() {
        let page = std::fs::read_to_string(docs("errors.md")).unwrap();
        let page = fill(&page, "codes of requests", &request_codes()).unwrap();
        let page = fill(&page, "codes of runs and connections", &other_codes()).unwrap();
        compare("errors.md", &page);
    }

    #[test]
    fn the_committed_openapi_document_is_the_one_that_hosts_serve() {
        let document = crate::openapi().to_pretty_json().unwrap();
        compare("openapi.json", &(document + "\n"));
    }

    /// All operations of the document, named by method and path.
    fn operations(document: &Value) -> Vec<(String, &Value)> {
        let paths = document["paths"].as_object().unwrap();
        let items = paths.iter().flat_map(|(path, item)| {
            let operations = item.as_object().unwrap().iter();
            let operations = operations.filter(|(_, operation)| operation.get("responses").is_some());
            operations
                .map(move |(method, operation)| (format!("{} {path}", method.to_uppercase()), operation))
        });
        items.collect()
    }

    /// All contents of an operation's request and the JSON contents of its successful responses, with a name for each.
    fn contents(operation: &Value) -> Vec<(String, &Value)> {
        let request = operation["requestBody"]["content"].as_object().into_iter().flatten();
        let request = request.map(|(kind, content)| (format!("request {kind}"), content));
        let responses = operation["responses"].as_object().unwrap().iter();
        let responses = responses.filter(|(status, _)| status.starts_with('2'));
        let responses = responses.filter_map(|(status, response)| {
            let content = response.pointer("/content/application~1json")?;
            Some((format!("response {status}"), content))
        });
        request.chain(responses).collect()
    }

    /// Describes what is wrong with the example of a content or parameter, if anything.
    fn example_problem(document: &Value, content: &Value) -> Option<String> {
        let Some(example) = content.get("example") else { return Some("has no example".to_owned()) };
        let schema = content.get("schema").cloned().unwrap_or_else(|| json!({}));
        // References in the schema start at the root of the document.
        let schema = json!({ "allOf": [schema], "components": document["components"] });
        let validator = jsonschema::options().should_validate_formats(true).build(&schema).unwrap();
        let errors: Vec<_> = validator
            .iter_errors(example)
            .map(|error| format!("{error} at `{}`", error.instance_path()))
            .collect();
        if errors.is_empty() { None } else { Some(format!("has an invalid example: {}", errors.join("; "))) }
    }

    #[test]
    fn every_operation_has_a_summary_and_a_description() {
        let document = serde_json::to_value(crate::openapi()).unwrap();
        let mut problems = Vec::new();
        for (name, operation) in operations(&document) {
            let summary = operation["summary"].as_str().unwrap_or_default();
            if summary.is_empty() || summary.len() > 60 || summary.contains(['`', '/', '\n']) {
                problems
                    .push(format!("{name}: the summary `{summary}` must be short and must not be a route"));
            }
            if operation["description"].as_str().unwrap_or_default().len() < 20 {
                problems.push(format!("{name}: has no description"));
            }
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                if parameter["description"].as_str().unwrap_or_default().is_empty() {
                    problems.push(format!("{name}: parameter {} has no description", parameter["name"]));
                }
            }
        }
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    #[test]
    fn every_body_has_an_example_that_matches_its_schema() {
        let document = serde_json::to_value(crate::openapi()).unwrap();
        let mut problems = Vec::new();
        for (name, operation) in operations(&document) {
            for (body, content) in contents(operation) {
                let problem = example_problem(&document, content);
                problems.extend(problem.map(|problem| format!("{name}: {body} {problem}")));
            }
        }
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    #[test]
    fn every_parameter_has_an_example_that_matches_its_schema() {
        let document = serde_json::to_value(crate::openapi()).unwrap();
        let mut problems = Vec::new();
        for (name, operation) in operations(&document) {
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let problem = example_problem(&document, parameter);
                problems.extend(
                    problem.map(|problem| format!("{name}: parameter {} {problem}", parameter["name"])),
                );
            }
        }
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    #[test]
    fn every_tag_of_an_operation_is_described() {
        let document = serde_json::to_value(crate::openapi()).unwrap();
        let tags: Vec<&Value> = document["tags"].as_array().unwrap().iter().map(|tag| &tag["name"]).collect();
        for (name, operation) in operations(&document) {
            for tag in operation["tags"].as_array().unwrap() {
                assert!(tags.contains(&tag), "{name}: the tag {tag} has no description");
            }
        }
    }
}
