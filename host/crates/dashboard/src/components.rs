//! Parts that pages share: tables, badges, empty states, copy buttons and form fields.

use maud::{Markup, html};
use serde_json::Value;

use super::form::token_field;
use super::session::Visitor;
use syncline_engine::Integration;
use syncline_types::ids::ProviderSlug;

/// How a state is coloured. It is always written in words too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Good,
    Busy,
    Warning,
    Bad,
    Neutral,
}

impl Tone {
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Busy => "busy",
            Self::Warning => "warning",
            Self::Bad => "bad",
            Self::Neutral => "neutral",
        }
    }
}

/// A state in colour and in words.
pub(crate) fn badge(tone: Tone, text: &str) -> Markup {
    html! { span class={ "badge " (tone.class()) } { (text) } }
}

/// The heading of a page, with its actions at the right.
pub(crate) fn heading(title: &str, actions: &Markup) -> Markup {
    html! { header.page-heading { h1 { (title) } div.actions { (actions) } } }
}

/// A table that scrolls sideways on a narrow screen.
pub(crate) fn table(label: &str, columns: &[&str], rows: &Markup) -> Markup {
    html! {
        div.table role="region" aria-label=(label) tabindex="0" {
            table {
                thead {
                    tr {
                        @for column in columns {
                            @if column.is_empty() { td {} } @else { th scope="col" { (column) } }
                        }
                    }
                }
                tbody { (rows) }
            }
        }
    }
}

/// What a page shows when there is nothing yet: what it would show, and what to do next.
pub(crate) fn empty(title: &str, next: &Markup) -> Markup {
    html! { div.empty { p.empty-title { (title) } (next) } }
}

/// A value with a button that copies it.
pub(crate) fn copyable(value: &str) -> Markup {
    html! {
        span.copyable {
            code { (value) }
            button.copy type="button" data-copy=(value) { "Copy" }
        }
    }
}

/// A command or another text of several lines, with a button that copies it.
pub(crate) fn snippet(text: &str) -> Markup {
    html! {
        div.snippet {
            pre tabindex="0" { code { (text) } }
            button.copy type="button" data-copy=(text) { "Copy" }
        }
    }
}

/// The logo of a provider. The provider's name is beside it.
pub(crate) fn logo(provider: &ProviderSlug) -> Markup {
    html! { img.logo src={ "/images/template-logos/" (provider) ".svg" } alt="" width="28" height="28" loading="lazy"; }
}

/// Longest JSON text that a page shows, in bytes.
const MAX_JSON_BYTES: usize = 8 << 10;

/// A JSON value with line breaks. A long one is cut.
pub(crate) fn json_text(value: &Value) -> Markup {
    long_text(&format!("{value:#}"))
}

/// A text with line breaks. A long one is cut.
pub(crate) fn long_text(text: &str) -> Markup {
    if text.len() <= MAX_JSON_BYTES {
        return snippet(text);
    }
    let shown = &text[..text.floor_char_boundary(MAX_JSON_BYTES)];
    html! {
        (snippet(shown))
        p.muted { "Cut here: the page shows " (MAX_JSON_BYTES >> 10) " KiB of " (text.len() >> 10) " KiB." }
    }
}

/// Pairs of a name and a value.
pub(crate) fn facts(pairs: &[(&str, Markup)]) -> Markup {
    html! { dl.facts { @for (name, value) in pairs { div { dt { (name) } dd { (value) } } } } }
}

/// A form with the token of the session. The script shows errors in it and keeps the typed text.
pub(crate) fn form(visitor: &Visitor, action: &str, content: &Markup) -> Markup {
    html! {
        form.stacked method="post" action=(action) {
            (token_field(visitor))
            (content)
            p.form-error role="alert" hidden {}
        }
    }
}

/// A form that consists of a button. With a question, the browser asks before it submits the form.
pub(crate) fn action_button(
    visitor: &Visitor,
    action: &str,
    label: &str,
    look: Look,
    question: Option<&str>,
) -> Markup {
    html! {
        form.inline method="post" action=(action) data-confirm=[question] {
            (token_field(visitor))
            button class=(look.class()) type="submit" { (label) }
            p.form-error role="alert" hidden {}
        }
    }
}

/// How a button looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    Primary,
    Secondary,
    Danger,
}

impl Look {
    fn class(self) -> &'static str {
        match self {
            Self::Primary => "button primary",
            Self::Secondary => "button",
            Self::Danger => "button danger",
        }
    }
}

/// The button that submits a form.
pub(crate) fn submit(label: &str, look: Look) -> Markup {
    html! { div.form-actions { button class=(look.class()) type="submit" { (label) } } }
}

/// A text field of a form.
pub(crate) struct TextField<'a> {
    pub(crate) name: &'a str,
    pub(crate) label: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) value: &'a str,
    pub(crate) hint: &'a str,
    pub(crate) is_required: bool,
    pub(crate) autocomplete: &'a str,
}

impl Default for TextField<'_> {
    fn default() -> Self {
        Self {
            name: "",
            label: "",
            kind: "text",
            value: "",
            hint: "",
            is_required: false,
            autocomplete: "off",
        }
    }
}

impl TextField<'_> {
    /// A field whose value is fixed.
    pub(crate) fn render_fixed(&self) -> Markup {
        html! {
            label.field {
                span.label { (self.label) }
                input type=(self.kind) name=(self.name) value=(self.value) autocomplete=(self.autocomplete) readonly;
            }
        }
    }

    pub(crate) fn render(&self) -> Markup {
        let hint_id = format!("{}-hint", self.name);
        html! {
            label.field {
                span.label { (self.label) @if !self.is_required { " " span.optional { "optional" } } }
                input type=(self.kind) name=(self.name) value=(self.value) autocomplete=(self.autocomplete)
                    required[self.is_required] aria-describedby=[(!self.hint.is_empty()).then_some(&hint_id)];
                @if !self.hint.is_empty() { span.hint id=(hint_id) { (self.hint) } }
            }
        }
    }
}

/// A field for a text of several lines.
pub(crate) fn text_area(name: &str, label: &str, value: &str, rows: u32) -> Markup {
    html! {
        label.field {
            span.label { (label) }
            textarea name=(name) rows=(rows) spellcheck="false" { (value) }
        }
    }
}

/// A field with a fixed set of values.
pub(crate) fn select(name: &str, label: &str, options: &[(&str, &str)], chosen: &str) -> Markup {
    html! {
        label.field {
            span.label { (label) }
            select name=(name) {
                @for (value, text) in options {
                    option value=(value) selected[*value == chosen] { (text) }
                }
            }
        }
    }
}

pub(crate) fn checkbox(name: &str, value: &str, label: &str, is_checked: bool) -> Markup {
    html! {
        label.checkbox {
            input type="checkbox" name=(name) value=(value) checked[is_checked];
            span { (label) }
        }
    }
}

/// A form that filters a list. It changes the query of the page's address.
pub(crate) fn filters(content: &Markup) -> Markup {
    html! { form.filters method="get" role="search" { (content) button.button type="submit" { "Apply" } } }
}

/// A field of a form that filters a list.
pub(crate) fn filter_field(name: &str, label: &str, kind: &str, value: &str) -> Markup {
    html! {
        label.field {
            span.label { (label) }
            input type=(kind) name=(name) value=(value) autocomplete="off";
        }
    }
}

/// Links to the first and the next page of a list.
pub(crate) fn pager(first: Option<&str>, next: Option<&str>) -> Markup {
    html! {
        @if first.is_some() || next.is_some() {
            nav.pager aria-label="Pages" {
                @if let Some(first) = first { a.button href=(first) { "First page" } }
                @if let Some(next) = next { a.button rel="next" href=(next) { "Next page" } }
            }
        }
    }
}

/// Removes the item behind a page, which was read to find out whether there is one. Returns the last item of the page
/// if another page follows.
pub(crate) fn cut_to_page<T>(items: &mut Vec<T>, page: usize) -> Option<&T> {
    let has_more = items.len() > page;
    items.truncate(page);
    items.last().filter(|_| has_more)
}

/// The way from a list to the page of one item.
pub(crate) fn breadcrumb(list: &str, url: &str) -> Markup {
    html! { p.breadcrumb { a href=(url) { "← " (list) } } }
}

/// Cuts a long text for display. Says so, with the size of the whole text.
pub(crate) fn cut(text: &str, most: usize) -> Markup {
    let end = text.floor_char_boundary(most);
    html! {
        (&text[..end])
        @if end < text.len() { "… " span.muted { "(cut; " (super::time::bytes(text.len())) " in total)" } }
    }
}

/// A list of integrations for a filter, which also allows all of them.
pub(crate) fn integration_filter(integrations: &[Integration], chosen: &str) -> Markup {
    let keys = integrations.iter().map(|integration| integration.unique_key.as_str());
    let options: Vec<_> = [("", "All")].into_iter().chain(keys.map(|key| (key, key))).collect();
    select("integration", "Integration", &options, chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_followed_by_another_if_there_are_more_items() {
        let mut items = vec![1, 2, 3];
        assert_eq!(cut_to_page(&mut items, 2), Some(&2));
        assert_eq!(cut_to_page(&mut items, 2), None);
        assert_eq!(items, [1, 2]);
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(cut("short", 5).into_string(), "short");
        assert!(cut("äöü", 3).into_string().starts_with("ä… "));
    }
}
