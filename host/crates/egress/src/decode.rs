//! Decompresses answers as they arrive.
//!
//! The HTTP library is not used for this: it stops after the first of several gzip members and silently drops the
//! rest.

use std::future::ready;
use std::io;
use std::pin::Pin;

use async_compression::tokio::bufread::{BrotliDecoder, GzipDecoder};
use bytes::Bytes;
use futures_util::stream::{self, Peekable};
use futures_util::{Stream, StreamExt, TryStreamExt};
use http::{HeaderMap, HeaderValue, header};
use tokio::io::AsyncRead;
use tokio_util::io::{ReaderStream, StreamReader};

/// The encodings that the host announces and can decode.
pub(super) const ACCEPTED: HeaderValue = HeaderValue::from_static("gzip,br");

const PART_BYTES: usize = 16 << 10;

/// How the body of an answer is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    /// Decompressed. The host sets `Accept-Encoding` itself.
    Decoded,
    /// As the provider sent it.
    AsSent,
}

pub(super) type Incoming = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

#[derive(Clone, Copy)]
enum Coding {
    Gzip,
    Brotli,
}

impl Encoding {
    /// Requests compressed answers if the host decodes them.
    pub fn ask(self, headers: &mut HeaderMap) {
        if self == Self::Decoded {
            headers.entry(header::ACCEPT_ENCODING).or_insert(ACCEPTED);
        }
    }

    /// Returns the body, and adapts the headers to it. A body with an unknown encoding stays encoded.
    pub fn body(self, answer: reqwest::Response, headers: &mut HeaderMap) -> Incoming {
        let incoming = answer.bytes_stream().map_err(io::Error::other);
        match coding(headers).filter(|_| self == Self::Decoded) {
            None => Box::pin(incoming),
            Some(coding) => {
                headers.remove(header::CONTENT_ENCODING);
                headers.remove(header::CONTENT_LENGTH);
                decoded(coding, Box::pin(incoming.try_filter(|part| ready(!part.is_empty()))))
            }
        }
    }
}

fn coding(headers: &HeaderMap) -> Option<Coding> {
    let named = headers.get(header::CONTENT_ENCODING)?.to_str().ok()?;
    let is = |name: &str| named.eq_ignore_ascii_case(name);
    match () {
        () if is("gzip") || is("x-gzip") => Some(Coding::Gzip),
        () if is("br") => Some(Coding::Brotli),
        () => None,
    }
}

fn decoded(coding: Coding, incoming: Incoming) -> Incoming {
    let parts = async move {
        let mut incoming = incoming.peekable();
        if Pin::new(&mut incoming).peek().await.is_none() {
            // An empty body is not compressed, whatever its headers say: answers to `HEAD`, and statuses such as 304.
            return Box::pin(stream::empty()) as Incoming;
        }
        let reader: StreamReader<Peekable<Incoming>, Bytes> = StreamReader::new(incoming);
        match coding {
            Coding::Gzip => {
                let mut decoder = GzipDecoder::new(reader);
                decoder.multiple_members(true);
                in_parts(decoder)
            }
            Coding::Brotli => in_parts(BrotliDecoder::new(reader)),
        }
    };
    Box::pin(stream::once(parts).flatten())
}

fn in_parts(decoder: impl AsyncRead + Send + 'static) -> Incoming {
    Box::pin(ReaderStream::with_capacity(decoder, PART_BYTES))
}
