//! The pages of the benchmark `dashboard`, and how it signs in.

use anyhow::Result;

use crate::host::{Host, SECRET_KEY};

/// A page to measure.
pub(super) struct Page {
    pub(super) name: &'static str,
    pub(super) path: &'static str,
}

/// `integration-7`, `customer-5000` and `function-3` are names that `seed` creates.
pub(super) const PAGES: &[Page] = &[
    Page { name: "runs", path: "/runs?limit=50" },
    Page { name: "failed runs", path: "/runs?limit=50&state=error" },
    Page { name: "runs of an integration", path: "/runs?limit=50&provider_config_key=integration-7" },
    Page { name: "runs of a function", path: "/runs?limit=50&function=function-3" },
    Page { name: "runs of a kind", path: "/runs?limit=50&kind=action" },
    Page {
        name: "runs of a connection",
        path: "/runs?limit=50&provider_config_key=integration-7&connection_id=customer-5007",
    },
    Page { name: "connections", path: "/connections?limit=50" },
    Page { name: "connections, last page", path: "/connections?limit=50&page=199" },
    Page { name: "connections, searched", path: "/connections?limit=50&search=customer-77" },
    Page { name: "connections by tag", path: "/connections?limit=50&tags[plan]=rare" },
];

/// Returns the headers of signed-in requests.
pub(super) async fn sign_in(_host: &Host) -> Result<Vec<(&'static str, String)>> {
    Ok(vec![("authorization", format!("Bearer {SECRET_KEY}"))])
}
