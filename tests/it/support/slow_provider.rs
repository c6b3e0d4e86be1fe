//! A provider that the test itself is: it answers when it is told to.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::Bundle;

pub struct SlowProvider(TcpListener);

/// A request that waits for its answer.
pub struct Asker {
    stream: TcpStream,
    pub path: String,
}

impl SlowProvider {
    pub async fn listen() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.expect("a port is free"))
    }

    pub fn address(&self) -> String {
        self.0.local_addr().expect("it is bound").to_string()
    }

    /// The hostile guest, for which this is the provider.
    pub fn bundle(&self) -> Bundle {
        Bundle::guest("hostile").at_address(&format!("http://{}", self.address()))
    }

    /// Waits until somebody asks.
    pub async fn asked(&self) -> Asker {
        let asked = tokio::time::timeout(Duration::from_secs(30), async {
            let (mut stream, _) = self.0.accept().await.expect("the host connects");
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.expect("the host sends a whole request"));
            }
            let head = String::from_utf8(head).expect("a head is text");
            let path = head.split(' ').nth(1).expect("a request has a path").to_owned();
            Asker { stream, path }
        });
        asked.await.expect("somebody asks within half a minute")
    }

    /// Nobody asks for this long.
    pub async fn is_left_alone_for(&self, time: Duration) -> bool {
        tokio::time::timeout(time, self.0.accept()).await.is_err()
    }
}

impl Asker {
    pub async fn answer(mut self, body: &str) {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        let answer = format!("{head}{body}");
        self.stream.write_all(answer.as_bytes()).await.expect("the host reads the answer");
    }

    /// Answers somebody who may be gone.
    pub async fn answer_if_there(mut self, body: &str) {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        let _may_be_gone = self.stream.write_all(format!("{head}{body}").as_bytes()).await;
    }

    /// Waits until whoever asked hangs up.
    pub async fn wait_for_hang_up(mut self) {
        let ended = tokio::time::timeout(Duration::from_secs(10), self.stream.read_u8()).await;
        assert!(ended.expect("the request ends within ten seconds").is_err());
    }
}
