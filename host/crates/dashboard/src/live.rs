//! Parts of pages that follow changes, through server-sent events.
//!
//! The page contains the part as it was rendered, with the address of its stream. The stream renders the part again
//! every two seconds and sends it when it differs. A browser closes the stream while the page is hidden.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use maud::{Markup, html};

use super::Dashboard;
use super::error::PageError;
use syncline_auth::SignedIn;

const RENDER_EVERY: Duration = Duration::from_secs(2);
/// A stream ends after this time, and the browser opens a new one. So a session that has ended stops getting data.
const STREAM_LIFETIME: Duration = Duration::from_secs(30);

/// A part of a page that follows changes. `address` is the path of its stream.
pub(crate) fn part(address: &str, content: &Markup) -> Markup {
    html! { div data-live=(address) { (content) } }
}

/// Streams a part of a page. `render` is called until the browser closes the stream.
pub(crate) fn stream_part<F>(
    app: &Dashboard,
    _: &SignedIn,
    render: impl Fn() -> F + Send + 'static,
) -> Response
where
    F: Future<Output = Result<Markup, PageError>> + Send,
{
    let stopping = app.stopping.clone();
    let ends_at = tokio::time::Instant::now() + STREAM_LIFETIME;
    let parts = stream::unfold((render, String::new(), true), move |(render, mut last, is_first)| {
        let stopping = stopping.clone();
        async move {
            if !is_first {
                stopping.run_until_cancelled(tokio::time::sleep(RENDER_EVERY)).await?;
            }
            loop {
                if tokio::time::Instant::now() > ends_at {
                    return None;
                }
                // After an error the browser opens the stream again, and shows the part as it is until then.
                let part = render().await.ok()?.into_string();
                if part != last {
                    last.clone_from(&part);
                    let event = Event::default().event("part").data(part);
                    return Some((Ok::<_, Infallible>(event), (render, last, false)));
                }
                stopping.run_until_cancelled(tokio::time::sleep(RENDER_EVERY)).await?;
            }
        }
    });
    Sse::new(parts).keep_alive(KeepAlive::default()).into_response()
}
