//! `/metrics`: what Prometheus fetches, without a key.

use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::Mutex;

use super::App;
use crate::metrics::{CONTENT_TYPE, Observed, metrics};

/// However often it is asked, the database is looked at once in this time.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The route, for the API's own listener or for another one.
pub fn metrics_routes() -> Router<App> {
    Router::new().route("/metrics", get(get_metrics))
}

async fn get_metrics(State(app): State<App>) -> Response {
    static LAST: Mutex<Option<(Instant, Observed)>> = Mutex::const_new(None);
    let mut last = LAST.lock().await;
    let observed = match *last {
        Some((at, observed)) if at.elapsed() < LOOK_EVERY => observed,
        _ => {
            let observed = app.engine.observe().await;
            *last = Some((Instant::now(), observed));
            observed
        }
    };
    drop(last);
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], metrics().encode(&observed)).into_response()
}

/// Counts a request under the pattern of its route.
pub(super) async fn count(request: Request, next: Next) -> Response {
    let began = Instant::now();
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    let route = route.as_ref().map_or("unknown", MatchedPath::as_str);
    // A client may call its method whatever it likes.
    let method = if KNOWN_METHODS.contains(&method.as_str()) { method.as_str() } else { "other" };
    metrics().count_api_request(method, route, response.status().as_u16(), began.elapsed());
    response
}

const KNOWN_METHODS: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
