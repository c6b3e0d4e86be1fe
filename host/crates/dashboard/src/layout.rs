//! The frame of every page: navigation, notices and the page's own content.

use axum::http::header;
use axum::response::{Html, IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};

use super::Dashboard;
use super::components::Tone;
use super::components::badge;
use super::form::token_field;
use super::session::{Visit, Visitor, shown_notice_cookie};
use syncline_auth::Scope;

/// The pages of the navigation that concern one environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Section {
    Overview,
    Integrations,
    Connections,
    Syncs,
    Runs,
    Records,
    DeadLetters,
    Actions,
    InboundWebhooks,
    OutboundWebhooks,
    Deployments,
    Keys,
    Variables,
    Settings,
}

impl Section {
    const ALL: [Self; 14] = [
        Self::Overview,
        Self::Integrations,
        Self::Connections,
        Self::Syncs,
        Self::Runs,
        Self::Records,
        Self::DeadLetters,
        Self::Actions,
        Self::InboundWebhooks,
        Self::OutboundWebhooks,
        Self::Deployments,
        Self::Keys,
        Self::Variables,
        Self::Settings,
    ];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Integrations => "Integrations",
            Self::Connections => "Connections",
            Self::Syncs => "Syncs",
            Self::Runs => "Runs",
            Self::Records => "Records",
            Self::DeadLetters => "Dead letters",
            Self::Actions => "Actions",
            Self::InboundWebhooks => "Inbound webhooks",
            Self::OutboundWebhooks => "Outbound webhooks",
            Self::Deployments => "Deployments",
            Self::Keys => "Secret keys",
            Self::Variables => "Variables",
            Self::Settings => "Settings",
        }
    }

    /// The last part of the page's path.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Overview => "overview",
            Self::Integrations => "integrations",
            Self::Connections => "connections",
            Self::Syncs => "syncs",
            Self::Runs => "runs",
            Self::Records => "records",
            Self::DeadLetters => "dead-letters",
            Self::Actions => "actions",
            Self::InboundWebhooks => "inbound-webhooks",
            Self::OutboundWebhooks => "outbound-webhooks",
            Self::Deployments => "deployments",
            Self::Keys => "keys",
            Self::Variables => "variables",
            Self::Settings => "settings",
        }
    }

    /// The scope that the page needs.
    pub(crate) fn scope(self) -> Scope {
        match self {
            Self::Overview | Self::Runs => Scope::LogsRead,
            Self::Integrations => Scope::IntegrationsList,
            Self::Connections => Scope::ConnectionsList,
            Self::Syncs => Scope::SyncsRead,
            Self::Records | Self::DeadLetters => Scope::RecordsRead,
            Self::Actions => Scope::ActionsExecute,
            Self::InboundWebhooks | Self::OutboundWebhooks => Scope::WebhooksRead,
            Self::Deployments => Scope::FunctionsRead,
            Self::Keys => Scope::ApiKeysCreate,
            Self::Variables => Scope::VariablesRead,
            Self::Settings => Scope::SettingsRead,
        }
    }
}

/// The pages of the navigation that concern the installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GlobalSection {
    Environments,
    Accounts,
    AuditLog,
    Profile,
}

impl GlobalSection {
    const ALL: [Self; 4] = [Self::Environments, Self::Accounts, Self::AuditLog, Self::Profile];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Environments => "Environments",
            Self::Accounts => "Accounts",
            Self::AuditLog => "Audit log",
            Self::Profile => "Your account",
        }
    }

    pub(crate) fn url(self) -> &'static str {
        match self {
            Self::Environments => "/dashboard/environments",
            Self::Accounts => "/dashboard/accounts",
            Self::AuditLog => "/dashboard/audit-log",
            Self::Profile => "/dashboard/profile",
        }
    }

    /// The scope that the page needs. Everyone sees the list of environments and their own account.
    pub(crate) fn scope(self) -> Option<Scope> {
        match self {
            Self::Environments | Self::Profile => None,
            Self::Accounts => Some(Scope::AccountsManage),
            Self::AuditLog => Some(Scope::AuditLogRead),
        }
    }
}

/// A page about an environment.
pub(crate) fn page(
    app: &Dashboard,
    visit: &Visit,
    section: Section,
    title: &str,
    content: &Markup,
) -> Response {
    let navigation = html! {
        ul {
            @for shown in Section::ALL.into_iter().filter(|section| visit.allows(section.scope())) {
                li {
                    a href=(visit.url(shown.path())) aria-current=[(shown == section).then_some("page")] {
                        (shown.title())
                    }
                }
            }
        }
    };
    let title = format!("{title} · {}", visit.environment.name);
    frame(app, visit, &title, Some((visit.environment.name.as_str(), section)), &navigation, None, content)
}

/// A page about the installation.
pub(crate) fn global_page(
    app: &Dashboard,
    visitor: &Visitor,
    section: GlobalSection,
    title: &str,
    content: &Markup,
) -> Response {
    frame(app, visitor, title, None, &html! {}, Some(section), content)
}

fn frame(
    app: &Dashboard,
    visitor: &Visitor,
    title: &str,
    environment: Option<(&str, Section)>,
    navigation: &Markup,
    global: Option<GlobalSection>,
    content: &Markup,
) -> Response {
    let section_path = environment.map_or("overview", |(_, section)| section.path());
    let body = html! {
        a.skip href="#content" { "Skip to the content" }
        header.top {
            a.brand href="/dashboard" { "Syncline" }
            details.switcher {
                summary { (environment.map_or("Choose an environment", |(name, _)| name)) }
                ul {
                    @for known in &visitor.environments {
                        li {
                            a href={ "/dashboard/environments/" (known.name) "/" (section_path) }
                                aria-current=[environment.is_some_and(|(name, _)| name == known.name.as_str()).then_some("true")] {
                                (known.name)
                            }
                        }
                    }
                }
            }
            details.menu {
                summary aria-label="Menu" { "Menu" }
                nav aria-label="Main" { (navigation) (global_navigation(visitor, global)) }
            }
        }
        div.columns {
            nav.side aria-label="Main" { (navigation) (global_navigation(visitor, global)) }
            main id="content" tabindex="-1" {
                @if let Some(notice) = &visitor.notice { p.notice role="status" { (notice) } }
                (content)
            }
        }
    };
    let html = Html(document(title, &body).into_string());
    match visitor.notice {
        Some(_) => ([(header::SET_COOKIE, shown_notice_cookie(app))], html).into_response(),
        None => html.into_response(),
    }
}

fn global_navigation(visitor: &Visitor, current: Option<GlobalSection>) -> Markup {
    let is_shown = |section: &GlobalSection| section.scope().is_none_or(|scope| visitor.allows(scope));
    html! {
        ul.global {
            @for section in GlobalSection::ALL.into_iter().filter(is_shown) {
                li {
                    a href=(section.url()) aria-current=[(Some(section) == current).then_some("page")] {
                        (section.title())
                    }
                }
            }
        }
        div.person {
            span.email title=(visitor.person.account.email) { (visitor.person.account.email) }
            (badge(Tone::Neutral, visitor.person.account.role.as_str()))
            form method="post" action="/dashboard/sign-out" {
                (token_field(visitor))
                button.button type="submit" { "Sign out" }
            }
        }
    }
}

/// A page without navigation, for people who are not signed in.
pub(crate) fn plain(title: &str, content: &Markup) -> Markup {
    document(title, &html! { main.plain id="content" { (content) } })
}

fn document(title: &str, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Syncline" }
                link rel="icon" href="/dashboard/assets/icon.svg" type="image/svg+xml";
                link rel="stylesheet" href="/dashboard/assets/dashboard.css";
                script src="/dashboard/assets/dashboard.js" defer {}
            }
            body { (body) }
        }
    }
}
