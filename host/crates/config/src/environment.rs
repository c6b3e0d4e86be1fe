//! Reads `[environment]`.

use std::fmt::Display;
use std::str::FromStr;

use super::diagnostics::Diagnostics;
use super::table::Table;
use syncline_types::environment_settings::SettingsChange;

pub(super) fn read_environment(mut table: Table<'_>, found: &mut Diagnostics) -> SettingsChange {
    let change = SettingsChange {
        webhook_url: removable(&mut table, found, "webhook_url"),
        webhook_url_secondary: removable(&mut table, found, "webhook_url_secondary"),
        callback_url: removable(&mut table, found, "callback_url"),
        on_auth_creation: table.stated_flag(found, "on_auth_creation"),
        on_auth_refresh_error: table.stated_flag(found, "on_auth_refresh_error"),
        on_sync_completion_always: table.stated_flag(found, "on_sync_completion_always"),
        on_sync_error: table.stated_flag(found, "on_sync_error"),
        on_async_action_completion: table.stated_flag(found, "on_async_action_completion"),
        connect_ui_title: removable(&mut table, found, "connect_ui_title"),
        connect_ui_primary_color: removable(&mut table, found, "connect_ui_primary_color"),
    };
    table.finish(found);
    change
}

/// Reads a string. An empty string removes the setting, because TOML has no null.
fn removable<T>(table: &mut Table<'_>, found: &mut Diagnostics, key: &'static str) -> Option<Option<T>>
where
    T: FromStr<Err: Display>,
{
    let text = table.text(found, key)?;
    if text.text.is_empty() {
        return Some(None);
    }
    match text.text.parse() {
        Ok(value) => Some(Some(value)),
        Err(problem) => {
            found.add(text.span, format!("`{key}` {problem}"), None);
            None
        }
    }
}
