//! The pages and lists of the benchmark `dashboard`, and how it signs in.

use anyhow::Result;
use sqlx::Executor;

use crate::database::Database;
use crate::host::SECRET_KEY;

/// A page or a list to measure.
pub(super) struct Page {
    pub(super) name: &'static str,
    pub(super) path: &'static str,
}

/// `integration-7`, `customer-5007` and `function-3` are names that `seed` creates.
pub(super) const PAGES: &[Page] = &[
    Page { name: "overview", path: "/dashboard/environments/dev/overview" },
    Page { name: "overview, 30 days", path: "/dashboard/environments/dev/overview?range=month" },
    Page { name: "integrations", path: "/dashboard/environments/dev/integrations" },
    Page { name: "integration", path: "/dashboard/environments/dev/integrations/integration-7" },
    Page { name: "connections", path: "/dashboard/environments/dev/connections" },
    Page {
        name: "connections, searched",
        path: "/dashboard/environments/dev/connections?search=customer-77",
    },
    Page { name: "connections with errors", path: "/dashboard/environments/dev/connections?errors=any" },
    Page { name: "connection", path: "/dashboard/environments/dev/connections/integration-7/customer-5007" },
    Page { name: "syncs", path: "/dashboard/environments/dev/syncs" },
    Page { name: "runs", path: "/dashboard/environments/dev/runs" },
    Page { name: "failed runs", path: "/dashboard/environments/dev/runs?state=error" },
    Page { name: "runs of a function", path: "/dashboard/environments/dev/runs?function=function-3" },
    Page { name: "records", path: "/dashboard/environments/dev/records" },
    Page { name: "dead letters", path: "/dashboard/environments/dev/dead-letters" },
    Page { name: "actions", path: "/dashboard/environments/dev/actions" },
    Page { name: "inbound webhooks", path: "/dashboard/environments/dev/inbound-webhooks" },
    Page { name: "outbound webhooks", path: "/dashboard/environments/dev/outbound-webhooks" },
    Page { name: "deployments", path: "/dashboard/environments/dev/deployments" },
    Page { name: "settings", path: "/dashboard/environments/dev/settings" },
    Page { name: "audit log", path: "/dashboard/audit-log" },
    Page { name: "GET /runs", path: "/runs?limit=50" },
    Page { name: "GET /runs, a function", path: "/runs?limit=50&function=function-3" },
    Page { name: "GET /connections", path: "/connections?limit=50" },
    Page { name: "GET /connections, by tag", path: "/connections?limit=50&tags[plan]=rare" },
];

/// Stores an administrator with a session, and returns the headers of signed-in requests.
pub(super) async fn sign_in(database: &Database) -> Result<Vec<(&'static str, String)>> {
    database
        .connect()
        .await?
        .execute(
            "WITH account AS (
                INSERT INTO accounts (email, name, role, password_hash)
                VALUES ('benchmark@example.com', 'Benchmark', 'administrator', 'none') RETURNING pk
             )
             INSERT INTO account_sessions (account_pk, token_hash, expires_at)
             SELECT pk, sha256('benchmark'), now() + interval '1 day' FROM account",
        )
        .await?;
    Ok(vec![
        ("cookie", "syncline_session=benchmark".to_owned()),
        ("authorization", format!("Bearer {SECRET_KEY}")),
    ])
}
