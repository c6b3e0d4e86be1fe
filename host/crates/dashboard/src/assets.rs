//! The style sheet and the script of all pages.

use axum::body::Body;
use axum::extract::Path;
use axum::http::{HeaderMap, Response, StatusCode};
use axum::response::IntoResponse;

use syncline_web::static_files::answer;

/// A debug build reads the files from the source folder, so that changes need no compilation.
#[derive(rust_embed::Embed)]
#[folder = "assets"]
struct Files;

pub(crate) async fn asset(Path(path): Path<String>, headers: HeaderMap) -> Response<Body> {
    let Some(file) = Files::get(&path) else { return StatusCode::NOT_FOUND.into_response() };
    let content_type = match path.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        _ => "application/octet-stream",
    };
    answer(file.data.into_owned(), &file.metadata.sha256_hash(), content_type, &headers)
}
