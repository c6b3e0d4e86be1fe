//! What pages show in an environment without integrations.

use maud::{Markup, html};

use crate::Dashboard;
use crate::components::{empty, snippet};
use crate::session::Visit;
use syncline_auth::Scope;

pub(crate) fn no_integrations(app: &Dashboard, visit: &Visit) -> Markup {
    let command = format!(
        "curl {}/integrations \\\n  --header 'Authorization: Bearer <secret key>' \\\n  \
         --json '{{\"provider\": \"stripe-api-key\", \"unique_key\": \"shop\"}}'",
        app.public_url
    );
    empty(
        "There is no integration yet",
        &html! {
            p { "An integration is a provider, such as Stripe, that is set up in this environment under a key." }
            @if visit.allows(Scope::IntegrationsCreate) {
                p { a.button.primary href=(visit.url("providers")) { "Choose a provider" } }
                p { "Or send a request with a secret key of this environment:" }
                (snippet(&command))
            } @else {
                p { "Ask a developer or an administrator to set up a provider." }
            }
        },
    )
}
