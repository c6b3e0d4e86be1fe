//! The log of a run, from its end.

use maud::{Markup, html};

use crate::Dashboard;
use crate::components::{Tone, badge, cut, cut_to_page, filter_field, filters, pager, select};
use crate::error::PageError;
use crate::query::{Query, address};
use crate::session::Visit;
use syncline_engine::{LastLines, LoggedLine, LoggedRun};
use syncline_types::functions::RunState;

/// The lines of a page.
const PAGE: usize = 100;
/// The bytes of a message, and of the fields, that are shown.
const TEXT_BYTES: usize = 500;
const MAX_SEARCH_BYTES: usize = 200;
const LEVELS: [(&str, &str); 4] =
    [("debug", "All"), ("info", "Info and above"), ("warn", "Warnings and errors"), ("error", "Errors")];

/// Which lines of the log to show.
pub(super) struct LogFilter {
    level: &'static str,
    search: Option<String>,
    /// Only lines before this one.
    pub(super) before: Option<i32>,
}

impl LogFilter {
    pub(super) fn read(query: &Query) -> Result<Self, PageError> {
        let level = LEVELS.iter().find(|(level, _)| *level == query.text("level"));
        let search = query.optional("search");
        if search.is_some_and(|search| search.len() > MAX_SEARCH_BYTES) {
            let problem = format!("must be at most {MAX_SEARCH_BYTES} bytes long");
            return Err(PageError::invalid("Text", problem));
        }
        Ok(Self {
            level: level.map_or("debug", |(level, _)| level),
            search: search.map(str::to_owned),
            before: query.parse_optional("before", "Page")?,
        })
    }

    /// The address of `path` with this level and text, and these fields.
    pub(super) fn address(&self, path: &str, fields: &[(&str, &str)]) -> String {
        let own = [("level", Some(self.level)), ("search", self.search.as_deref())];
        let own = own.into_iter().filter_map(|(name, value)| Some((name, value?)));
        address(path, own.chain(fields.iter().copied()))
    }

    pub(super) fn form(&self) -> Markup {
        filters(&html! {
            (select("level", "Level", &LEVELS, self.level))
            (filter_field("search", "Text", "text", self.search.as_deref().unwrap_or_default()))
        })
    }

    fn lines(&self) -> LastLines {
        let at_least = LEVELS.iter().skip_while(|(level, _)| *level != self.level);
        LastLines {
            levels: at_least.map(|(level, _)| *level).collect(),
            search: self.search.clone(),
            before: self.before,
        }
    }
}

/// The last lines of a log, oldest first. `page` is the address of the run's page.
pub(super) async fn log(
    app: &Dashboard,
    visit: &Visit,
    run: &LoggedRun,
    filter: &LogFilter,
    page: &str,
) -> Result<Markup, PageError> {
    let mut lines =
        app.runs.last_lines(visit.environment.pk, run.id, &filter.lines(), PAGE as i64 + 1).await?;
    lines.reverse();
    let older = cut_to_page(&mut lines, PAGE)
        .map(|first| filter.address(page, &[("before", &first.line.to_string())]));
    lines.reverse();
    Ok(html! {
        @if lines.is_empty() {
            p.muted {
                @if filter.search.is_some() || filter.level != "debug" { "No line matches." }
                @else if run.state == RunState::Running { "The function has logged nothing yet." }
                @else { "The function logged nothing." }
            }
        } @else {
            @if filter.before.is_some() { (pager(Some(&filter.address(page, &[])), None)) }
            @if let Some(older) = &older { p { a href=(older) { "Older lines" } } }
            div.table role="region" aria-label="Log" tabindex="0" {
                table.log { tbody { @for line in &lines { (row(line)) } } }
            }
        }
    })
}

fn row(line: &LoggedLine) -> Markup {
    let tone = match line.level.as_str() {
        "error" => Tone::Bad,
        "warn" => Tone::Warning,
        "info" => Tone::Busy,
        _ => Tone::Neutral,
    };
    html! {
        tr {
            td { time datetime=(line.at.to_rfc3339()) { (line.at.format("%H:%M:%S%.3f").to_string()) } }
            td { (badge(tone, &line.level)) }
            td {
                (cut(&line.message, TEXT_BYTES))
                @if let Some(fields) = &line.fields { div.muted { (cut(&fields.to_string(), TEXT_BYTES)) } }
            }
        }
    }
}
