//! A client that sends a body slowly, but is never silent for long.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Sends the head of a request, and then a byte of its body four times a second. Returns the response that ends this.
pub async fn answer_to_slow_body(stream: TcpStream, head: &str) -> String {
    let request = head.lines().next().unwrap_or_default();
    let (mut incoming, mut outgoing) = stream.into_split();
    outgoing.write_all(head.as_bytes()).await.expect("the host reads");
    // The client is never silent for long, so the host has to limit the time for the whole body.
    let trickle = async {
        while outgoing.write_all(b" ").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    };
    let mut answer = Vec::new();
    let answered = async {
        while !answer.ends_with(b"}}") {
            let read = incoming.read_buf(&mut answer).await.expect("the host answers");
            assert!(read > 0, "{request}: the response is incomplete");
        }
    };
    tokio::select! {
        () = answered => {}
        () = trickle => panic!("{request}: the host disconnects without a response"),
        () = tokio::time::sleep(Duration::from_secs(60)) => panic!("{request}: the host still waits for the body"),
    }
    String::from_utf8_lossy(&answer).into_owned()
}
