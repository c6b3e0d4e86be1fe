//! How the outcome of an action is shown.

use maud::{Markup, html};
use serde_json::Value;

use crate::components::{facts, table};
use crate::time::bytes;
use crate::tree::{small_tree, tree};
use syncline_engine::ActionFailure;

/// The value that an action returned.
pub(super) fn output(output: Option<&str>) -> Markup {
    html! {
        h2 { "Output" }
        @match output {
            None => p.muted { "The function returned nothing." },
            Some(json) => {
                p.muted { (bytes(json.len())) }
                section.card { (tree(json)) }
            }
        }
    }
}

/// Why an action failed.
pub(super) fn failure(failure: &ActionFailure) -> Markup {
    let rows = html! {
        @for problem in &failure.problems {
            tr {
                td { code { (if problem.path.is_empty() { "the value" } else { problem.path.as_str() }) } }
                td { (problem.problem) }
            }
        }
    };
    html! {
        p.alert role="alert" { (failure.message) }
        (facts(&[
            ("Code", html! { code { (failure.code.as_str()) } }),
            ("What to do", html! { (failure.code.remedy()) }),
        ]))
        @if !failure.problems.is_empty() {
            h2 { "Problems" }
            (table("Problems", &["Path", "Problem"], &rows))
        }
        (details("Details", failure.payload.as_ref()))
        (details("The provider's response", failure.upstream.as_ref()))
    }
}

fn details(title: &str, value: Option<&Value>) -> Markup {
    html! {
        @if let Some(value) = value {
            h2 { (title) }
            section.card { (small_tree(&value.to_string())) }
        }
    }
}
