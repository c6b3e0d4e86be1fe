//! Settings of `syncline serve` that limit clients.

use clap::Args;

const GIB: i64 = 1 << 30;

#[derive(Debug, Args)]
pub(super) struct ClientLimitArgs {
    /// Length at which a page of records, dead letters or log lines ends, whatever its number of items
    #[arg(long, env = "SYNCLINE_MAX_PAGE_BYTES", default_value_t = 16 << 20, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1024..=GIB))]
    max_page_bytes: u32,
}

impl ClientLimitArgs {
    pub(super) fn max_page_bytes(&self) -> usize {
        self.max_page_bytes as usize
    }
}
