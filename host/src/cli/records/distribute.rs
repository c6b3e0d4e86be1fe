//! `syncline records distribute`: distributes the records database over the nodes of a Citus cluster.

use anyhow::bail;
use clap::Args;

use crate::cli::database::DatabaseArgs;
use crate::cli::{Done, output};
use syncline_store::distribution::{CheckedNode, Distribution, DistributionPlan};

#[derive(Debug, Args)]
pub(super) struct DistributeArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Number of parts of each table; at least the number of nodes that the cluster will ever have
    #[arg(long, default_value_t = 32, value_name = "NUMBER", value_parser = clap::value_parser!(i32).range(1..=1024))]
    shards: i32,
    /// Only show what would change
    #[arg(long)]
    dry_run: bool,
    /// Distribute without asking for confirmation
    #[arg(long, short)]
    yes: bool,
}

pub(super) async fn run(args: DistributeArgs) -> anyhow::Result<Done> {
    let database = args.database.open().await?;
    let mut distribution = Distribution::open(database.databases.clone()).await?;
    let done = distribute(&args, &mut distribution).await;
    distribution.close().await?;
    database.close().await?;
    done
}

async fn distribute(args: &DistributeArgs, distribution: &mut Distribution) -> anyhow::Result<Done> {
    let plan = distribution.plan(args.shards).await?;
    print!("{}", describe(&plan));
    if args.dry_run {
        return Ok(Done::Successful);
    }
    let question = "stop all hosts first; distribute these tables?";
    let instead = "use --yes to distribute, or --dry-run to only show the changes";
    if !plan.tables.is_empty() && !args.yes && !output::confirmed(question, instead)? {
        println!("nothing was changed");
        return Ok(Done::Successful);
    }
    distribution.apply(&plan).await?;
    let checked = distribution.check(&plan).await?;
    for node in &checked {
        println!("{}", describe_node(node));
    }
    let unusable = checked.iter().filter(|node| node.problem.is_some()).count();
    if unusable > 0 {
        bail!("{unusable} of {} nodes have a problem; correct it, and repeat the command", checked.len());
    }
    println!("the records database is distributed; you can start the hosts");
    Ok(Done::Successful)
}

fn describe(plan: &DistributionPlan) -> String {
    let mut lines = vec![format!("records database `{}` on a Citus cluster:", plan.database)];
    for node in &plan.nodes {
        let kind = if node.is_coordinator { "coordinator" } else { "worker" };
        let rows = if node.has_shards { "stores records" } else { "stores no records" };
        lines.push(format!("  {kind} {}, {rows}", node.address));
    }
    lines.push("changes:".to_owned());
    if plan.partitions > 0 {
        lines.push(format!("  ~ make `records` one table instead of {} partitions", plan.partitions));
    }
    for table in &plan.tables {
        lines.push(format!(
            "  ~ distribute `{}` ({}) by `connection_pk` in {} shards",
            table.name,
            size(table.bytes),
            plan.shards
        ));
    }
    if plan.tables.is_empty() {
        lines.push(format!("  all tables are distributed already, in {} shards", plan.shards));
    }
    lines.push(format!("  ~ set the planner's settings of role `{}` on all nodes", plan.role));
    lines.join("\n") + "\n"
}

fn describe_node(node: &CheckedNode) -> String {
    match &node.problem {
        None => format!("  ok {}, {} shards of `records`", node.address, node.shards),
        Some(problem) => format!("  ! {}: {problem}", node.address),
    }
}

fn size(bytes: i64) -> String {
    match bytes {
        ..10_000_000 => format!("{} kB", bytes / 1_000),
        10_000_000..10_000_000_000 => format!("{} MB", bytes / 1_000_000),
        _ => format!("{} GB", bytes / 1_000_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_unit_that_fits() {
        assert_eq!(size(0), "0 kB");
        assert_eq!(size(9_999_999), "9999 kB");
        assert_eq!(size(10_000_000), "10 MB");
        assert_eq!(size(7_500_000_000_000), "7500 GB");
    }
}
