//! `/metrics`: metrics for Prometheus. Needs no key.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, Response, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::sync::Mutex;
use tower::{Layer, Service};

use super::App;
use syncline_telemetry::metrics::{CONTENT_TYPE, Observed, metrics};

/// The database is queried at most once in this time, however often metrics are fetched.
const OBSERVE_EVERY: Duration = Duration::from_secs(1);

/// The route, for the API's own listener or for another one.
pub fn metrics_routes() -> Router<App> {
    Router::new().route("/metrics", get(get_metrics))
}

async fn get_metrics(State(app): State<App>) -> axum::response::Response {
    static LAST: Mutex<Option<(Instant, Observed)>> = Mutex::const_new(None);
    let mut last = LAST.lock().await;
    let observed = match *last {
        Some((at, observed)) if at.elapsed() < OBSERVE_EVERY => observed,
        _ => {
            let observed = app.observation.observe().await;
            *last = Some((Instant::now(), observed));
            observed
        }
    };
    drop(last);
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], metrics().encode(&observed)).into_response()
}

/// Counts requests by the pattern of their route.
#[derive(Clone)]
pub(super) struct CountLayer;

impl<S> Layer<S> for CountLayer {
    type Service = Count<S>;

    fn layer(&self, inner: S) -> Count<S> {
        Count { inner }
    }
}

#[derive(Clone)]
pub(super) struct Count<S> {
    inner: S,
}

impl<S, B> Service<Request> for Count<S>
where
    S: Service<Request, Response = Response<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Counted<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let route = request.extensions().get::<MatchedPath>().cloned();
        let (began, method) = (Instant::now(), request.method().clone());
        Counted { answered: self.inner.call(request), began, method, route }
    }
}

pin_project_lite::pin_project! {
    /// The future of a request, which counts the request when it completes.
    pub(super) struct Counted<F> {
        #[pin]
        answered: F,
        began: Instant,
        method: Method,
        route: Option<MatchedPath>,
    }
}

impl<F, B, E> Future for Counted<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let answered = ready!(this.answered.poll(cx));
        if let Ok(response) = &answered {
            let route = this.route.as_ref().map_or("unknown", MatchedPath::as_str);
            // Clients can send any method name, and every new one would create a time series.
            let method = this.method.as_str();
            let method = if KNOWN_METHODS.contains(&method) { method } else { "other" };
            metrics().count_api_request(method, route, response.status().as_u16(), this.began.elapsed());
        }
        Poll::Ready(answered)
    }
}

const KNOWN_METHODS: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
