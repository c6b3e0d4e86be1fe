//! JSON as a tree that a reader can unfold. Large values are cut, because a page must stay small.

use std::fmt;

use maud::{Markup, html};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::time::bytes;

/// Most members and items that a tree shows.
const MAX_NODES: usize = 500;
/// Most bytes of HTML for the names and values of a tree.
const MAX_TEXT_BYTES: usize = 45_000;
/// Most bytes of HTML for one name or value.
const MAX_VALUE_BYTES: usize = 4_000;
/// Deeper values are shown as text.
const MAX_DEPTH: usize = 16;
/// Objects and arrays with more members are folded at first, except for the outermost one.
const MAX_OPEN_MEMBERS: usize = 20;
/// Deeper objects and arrays are folded at first.
const OPEN_DEPTH: usize = 2;

/// A JSON text as a tree. Text that is not JSON is shown as it is.
pub(crate) fn tree(json: &str) -> Markup {
    tree_within(json, Budget { nodes: MAX_NODES, bytes: MAX_TEXT_BYTES, is_cut: false })
}

/// Like [`tree`], for a page with several trees.
pub(crate) fn small_tree(json: &str) -> Markup {
    tree_within(json, Budget { nodes: MAX_NODES / 3, bytes: MAX_TEXT_BYTES / 3, is_cut: false })
}

fn tree_within(json: &str, mut budget: Budget) -> Markup {
    let root = match serde_json::from_str::<&RawValue>(json) {
        Ok(root) => node(None, root, 0, &mut budget),
        Err(_) => html! { div.line { (budget.clip(json)) } },
    };
    html! {
        @if budget.is_cut {
            p.muted { "This value has " (bytes(json.len())) ". Only a part of it is shown; the API returns all of it." }
        }
        div.tree { (root) }
    }
}

/// The beginning of a JSON text, for a row of a list.
pub(crate) fn preview(json: &str) -> Markup {
    html! { code.clip { (shorten(json, 120)) } }
}

/// The first characters of a text.
pub(crate) fn shorten(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// What a tree may still show.
struct Budget {
    nodes: usize,
    bytes: usize,
    is_cut: bool,
}

impl Budget {
    fn take_node(&mut self) -> bool {
        let has_room = self.nodes > 0 && self.bytes > 0;
        self.nodes = self.nodes.saturating_sub(1);
        self.is_cut |= !has_room;
        has_room
    }

    /// As much of a text as may be shown.
    fn clip(&mut self, text: &str) -> String {
        let mut left = self.bytes.min(MAX_VALUE_BYTES);
        let mut clipped = String::new();
        for character in text.chars() {
            let bytes = html_bytes(character);
            if bytes > left {
                self.is_cut = true;
                clipped.push('…');
                break;
            }
            left -= bytes;
            self.bytes -= bytes;
            clipped.push(character);
        }
        clipped
    }
}

/// The length of a character in HTML, where some are escaped.
fn html_bytes(character: char) -> usize {
    match character {
        '"' => "&quot;".len(),
        '&' => "&amp;".len(),
        '<' | '>' => "&lt;".len(),
        other => other.len_utf8(),
    }
}

fn node(key: Option<&str>, value: &RawValue, depth: usize, budget: &mut Budget) -> Markup {
    let name = key.map(|key| budget.clip(key));
    let label = html! { @if let Some(name) = &name { span.key { (name) } ": " } };
    let text = value.get();
    let Some(children) = children(text).filter(|_| depth < MAX_DEPTH) else {
        return html! { div.line { (label) (budget.clip(&readable(text))) } };
    };
    let is_object = text.starts_with('{');
    if children.is_empty() {
        return html! { div.line { (label) (if is_object { "{}" } else { "[]" }) } };
    }
    let is_open = depth == 0 || (depth < OPEN_DEPTH && children.len() <= MAX_OPEN_MEMBERS);
    let count = match (is_object, children.len()) {
        (true, 1) => "1 member".to_owned(),
        (true, count) => format!("{count} members"),
        (false, 1) => "1 item".to_owned(),
        (false, count) => format!("{count} items"),
    };
    let shown: Vec<Markup> =
        children
            .iter()
            .map_while(|(key, child)| {
                if budget.take_node() { Some(node(Some(key), child, depth + 1, budget)) } else { None }
            })
            .collect();
    html! {
        details open[is_open] {
            summary { (label) span.muted { (count) } }
            @for child in &shown { (child) }
            @if shown.len() < children.len() { div.line.muted { (children.len() - shown.len()) " more" } }
        }
    }
}

/// The members of an object, or the items of an array with their numbers. `None` if the text is neither, or if the
/// name of a member is not valid Unicode.
fn children(text: &str) -> Option<Vec<(String, &RawValue)>> {
    match text.as_bytes().first() {
        Some(b'{') => serde_json::from_str::<Members<'_>>(text).ok().map(|members| members.0),
        Some(b'[') => {
            let items = serde_json::from_str::<Vec<&RawValue>>(text).ok()?;
            Some(items.into_iter().enumerate().map(|(index, item)| (index.to_string(), item)).collect())
        }
        _ => None,
    }
}

/// A number, text or another plain value. Text is written without needless escapes; numbers stay as they were sent.
fn readable(text: &str) -> String {
    match serde_json::from_str::<String>(text) {
        Ok(content) => serde_json::Value::String(content).to_string(),
        Err(_) => text.to_owned(),
    }
}

/// The members of an object in their order.
struct Members<'t>(Vec<(String, &'t RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;

        impl<'de> Visitor<'de> for Read {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(Read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_shows_members_in_their_order_and_numbers_as_sent() {
        let html = tree(r#"{"z": 1.00, "a": {"n": 12345678901234567890123, "é": "\u00e9"}}"#).into_string();
        let at = |text: &str| html.find(text).unwrap_or_else(|| panic!("{text} in {html}"));
        assert!(at("1.00") < at("12345678901234567890123"));
        assert!(html.contains("é</span>: &quot;é&quot;"), "{html}");
        assert!(html.contains("2 members"), "{html}");
    }

    #[test]
    fn markup_in_data_is_escaped() {
        for json in [r#"{"<script>": "<script>"}"#, r#"["<script>"]"#, "<script>", r#""<script>""#] {
            assert!(!tree(json).into_string().contains("<script>"), "{json}");
            assert!(!preview(json).into_string().contains("<script>"), "{json}");
        }
    }

    #[test]
    fn the_tree_of_a_large_value_stays_small() {
        let wide = format!("[{}1]", "1,".repeat(200_000));
        let long = format!(r#"{{"text": "{}"}}"#, "x".repeat(2_000_000));
        let many = format!("[{}1]", format!("\"{}\",", "y".repeat(5_000)).repeat(500));
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        for json in [wide, long, many, deep] {
            let html = tree(&json).into_string();
            assert!(html.len() < 100_000, "{} bytes for {}", html.len(), &json[..20]);
            assert!(html.contains("Only a part of it is shown"), "{}", &json[..20]);
        }
    }

    #[test]
    fn text_that_is_not_json_is_shown_as_it_is() {
        assert!(tree("plain text").into_string().contains("plain text"));
        assert!(tree(r#"{"a": "\ud800"}"#).into_string().contains("\\ud800"));
    }
}
