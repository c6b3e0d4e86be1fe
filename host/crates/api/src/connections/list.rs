//! Writes the response of `GET /connections`. Its pages are numbered, so a page cannot end early. A long page is read and
//! sent in parts instead, so that the host keeps one part in memory.

use std::io;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, StreamExt};

use super::{ConnectionListing, ConnectionsResponse};
use crate::App;
use crate::error::ApiError;
use syncline_engine::{ConnectionFilter, ConnectionPage, ConnectionsPart, DescribedConnection};
use syncline_types::ids::EnvironmentPk;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The rest of a page.
struct Rest {
    app: App,
    environment: EnvironmentPk,
    filter: ConnectionFilter,
    limit: i64,
}

pub(super) async fn respond(
    app: App,
    environment: EnvironmentPk,
    filter: ConnectionFilter,
    page: ConnectionPage,
) -> Result<Response, ApiError> {
    let part = app.connections.list_part(environment, &filter, page).await?;
    if part.behind.is_none() {
        return Ok(Json(ConnectionsResponse { connections: listings(part.connections) }).into_response());
    }
    let mut rest = Rest { app, environment, filter, limit: page.limit };
    let first = rest.take("{\"connections\":[", part)?;
    let parts = stream::unfold(Some(rest), async |rest| {
        let mut rest = rest?;
        match rest.next().await {
            Ok(Some(text)) => Some((Ok(text), Some(rest))),
            Ok(None) => None,
            Err(error) => {
                // Logs internal errors. The response has begun, so the client gets an incomplete one.
                let (_, _, message) = error.into_client_error();
                Some((Err(io::Error::other(message)), None))
            }
        }
    });
    let body = stream::iter([Ok(first)]).chain(parts).chain(stream::iter([Ok(Bytes::from_static(b"]}"))]));
    Ok(([(header::CONTENT_TYPE, JSON)], Body::from_stream(body)).into_response())
}

impl Rest {
    /// Returns the text of the next part, or `None` at the end of the page.
    async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        if self.filter.behind.is_none() || self.limit <= 0 {
            return Ok(None);
        }
        let page = ConnectionPage { limit: self.limit, offset: 0 };
        let part = self.app.connections.list_part(self.environment, &self.filter, page).await?;
        if part.connections.is_empty() {
            return Ok(None);
        }
        self.take(",", part).map(Some)
    }

    /// Continues behind a part, and returns its text after `prefix`.
    fn take(&mut self, prefix: &str, part: ConnectionsPart) -> Result<Bytes, ApiError> {
        self.limit -= part.connections.len() as i64;
        self.filter.behind = part.behind;
        let mut text = prefix.as_bytes().to_vec();
        for (index, listing) in listings(part.connections).iter().enumerate() {
            if index > 0 {
                text.push(b',');
            }
            serde_json::to_writer(&mut text, listing).map_err(ApiError::internal)?;
        }
        Ok(text.into())
    }
}

fn listings(connections: Vec<DescribedConnection>) -> Vec<ConnectionListing> {
    connections.into_iter().map(ConnectionListing::from).collect()
}
