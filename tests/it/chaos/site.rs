//! The databases and third-party servers of a sequence, and the hosts that use them.

use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::Arc;

use tempfile::TempDir;

use super::accounts::{ROTATING, TOKEN_LIFETIME};
use super::clock::WallClock;
use super::network::Links;
use super::server::Server;
use crate::support::{Host, HostOptions, Receiver, TestDatabase, TokenServer};

/// The message of a host whose build is older than the database.
const NEWER_DATABASE: &str = "was migrated by a newer version of Syncline";

/// Fields are dropped in order: the databases before their servers.
pub struct Site {
    pub db: TestDatabase,
    /// The server of the control database, and the server of the records database if that is separate.
    pub servers: Vec<Server>,
    pub receiver: Receiver,
    pub tokens: TokenServer,
    /// A folder of provider files for each host.
    providers: TempDir,
}

/// A host of the sequence.
pub struct Member {
    host: Host,
    pub number: u32,
    /// Its network to Postgres, or `None` if it uses the socket of the server.
    pub links: Option<Arc<Links>>,
    /// Its wall clock, or `None` if libfaketime is not installed.
    pub clock: Option<Arc<WallClock>>,
    pub build: Build,
}

/// The build of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Build {
    /// The one that is tested.
    Own,
    /// The binary of `SYNCLINE_SOAK_OTHER_BINARY`, such as that of an earlier commit.
    Other,
}

impl Build {
    /// The other build. Without another binary, it is the same.
    pub fn opposite(self) -> Self {
        match self {
            Self::Own if other_binary().is_some() => Self::Other,
            _ => Self::Own,
        }
    }
}

/// The binary of another build.
pub fn other_binary() -> Option<PathBuf> {
    let path = std::env::var_os("SYNCLINE_SOAK_OTHER_BINARY").filter(|path| !path.is_empty())?;
    Some(PathBuf::from(path).canonicalize().expect("SYNCLINE_SOAK_OTHER_BINARY is the path of a binary"))
}

impl Site {
    pub async fn prepare(has_records_database: bool) -> Self {
        let mut servers = vec![Server::start().await];
        let mut db = TestDatabase::create_on(&servers[0].url()).await;
        if has_records_database {
            let server = Server::start().await;
            db = db.with_records_on(&server.url()).await;
            servers.push(server);
        }
        let (receiver, tokens) = (Receiver::start().await, TokenServer::start(TOKEN_LIFETIME).await);
        let providers = TempDir::new().expect("a temporary folder can be made");
        Self { db, servers, receiver, tokens, providers }
    }

    /// Starts a host. If it is remote, its connections to Postgres pass through a network that can fail.
    pub async fn spawn_host(&self, number: u32, is_remote: bool, build: Build) -> Member {
        let mut links = None;
        if is_remote {
            links = Some(Arc::new(Links::start(&self.db).await));
        }
        let clock = WallClock::create().map(Arc::new);
        self.write_provider_file(number);
        let options = |build| self.options(number, links.as_deref(), clock.as_deref(), build);
        let mut member = Member {
            host: options(build).start(),
            number,
            links: links.clone(),
            clock: clock.clone(),
            build,
        };
        if let Err(status) = member.host.ready_or_exited().await {
            // A host whose migrations are older than the database refuses to start. The operator starts the newer build.
            let log = member.host.log();
            assert!(
                log.contains(NEWER_DATABASE) && build != build.opposite(),
                "host {number} ({build:?}) exited before it was ready ({status}): {log}"
            );
            member.build = build.opposite();
            member.host = options(member.build).spawn().await;
        }
        member
    }

    fn write_provider_file(&self, number: u32) {
        let folder = self.provider_folder(number);
        std::fs::create_dir(&folder).expect("the folder is writable");
        let entry = self.tokens.entry(ROTATING, number);
        std::fs::write(folder.join(format!("{ROTATING}.toml")), entry).expect("the folder is writable");
    }

    fn provider_folder(&self, number: u32) -> PathBuf {
        self.providers.path().join(number.to_string())
    }

    fn options(
        &self,
        number: u32,
        links: Option<&Links>,
        clock: Option<&WallClock>,
        build: Build,
    ) -> HostOptions {
        let allowed = format!("{},{}", self.receiver.address(), self.tokens.address());
        let providers = self.provider_folder(number);
        let mut options = HostOptions::new()
            .database(&self.db)
            .variable("SYNCLINE_LEASE_SECONDS", "1")
            .variable("SYNCLINE_DATABASE_CONNECTIONS", "12")
            .variable("SYNCLINE_GRACE_SECONDS", "5")
            .variable("SYNCLINE_EGRESS_ALLOW", &allowed)
            .variable("SYNCLINE_PROVIDERS_DIR", providers.to_str().expect("it has a plain name"))
            .variable("SYNCLINE_WEBHOOK_RETRIES", "200ms,1s,1s,1s,1s")
            // Syncs are interrupted far more often here than stall detection allows by default.
            .variable("SYNCLINE_MAX_IDLE_ATTEMPTS", "1000000");
        if let Some(links) = links {
            options = links.connect(options, &self.db);
        }
        if let Some(clock) = clock {
            options = clock.connect(options);
        }
        if let (Build::Other, Some(binary)) = (build, other_binary()) {
            options = options.program(&binary);
        }
        options
    }
}

impl Member {
    /// Whether the process runs the binary of its build.
    pub fn runs_its_build(&self) -> bool {
        let running = std::fs::read_link(format!("/proc/{}/exe", self.host.process()));
        let is_other = running.is_ok_and(|running| Some(running) == other_binary());
        is_other == (self.build == Build::Other)
    }
}

impl Deref for Member {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.host
    }
}

impl DerefMut for Member {
    fn deref_mut(&mut self) -> &mut Host {
        &mut self.host
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if self.clock.is_some() {
            WallClock::clean_up(self.host.process());
        }
    }
}
