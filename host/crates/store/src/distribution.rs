//! Distributes the tables of a records database over the nodes of a Citus cluster.
//!
//! Rows of one connection are on one node, in tables that are colocated. All statements about a connection therefore
//! stay on that node.

use sqlx::migrate::Migrate;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection};

use super::{APPLICATION_NAME, Databases, OpenError, SESSION, citus, database_pair, hosts, prepare};

/// The tables of the records database.
pub const TABLES: [&str; 6] =
    ["sync_states", "streams", "records", "seen_positions", "dead_letters", "closed_connections"];

#[derive(Debug, thiserror::Error)]
pub enum DistributionError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(
        "this installation has no separate records database: set SYNCLINE_RECORDS_DATABASE_URL to the database on the \
         cluster's coordinator, and move existing records there first (see docs/how-to/separate-records-database.md)"
    )]
    NotSeparate,
    #[error(
        "the database at SYNCLINE_RECORDS_DATABASE_URL does not have the extension `citus`: run `CREATE EXTENSION \
         citus` in it on every node (see docs/how-to/distribute-records.md)"
    )]
    NoExtension,
    #[error(
        "SYNCLINE_RECORDS_DATABASE_URL names a worker of the Citus cluster: set it to the cluster's coordinator"
    )]
    NotCoordinator,
    #[error(
        "the Citus cluster has no node for rows: add workers with `SELECT citus_add_node('HOST', PORT)` in the database \
         at SYNCLINE_RECORDS_DATABASE_URL"
    )]
    NoWorkers,
    #[error(
        "node {node} of the Citus cluster cannot be used: {reason}; correct this, and repeat the command"
    )]
    Node { node: String, reason: String },
    #[error(
        "hosts are using the records database: stop all hosts of this installation, and repeat the command (a host that \
         was killed counts as running for 15 seconds)"
    )]
    HostsRunning,
    #[error(
        "table `{table}` is distributed in another way than by `connection_pk` together with the other tables: undo \
         this with `SELECT undistribute_table('{table}')`, and repeat the command"
    )]
    OtherDistribution { table: String },
    #[error("the records database could not be distributed; nothing was changed")]
    Failed(#[source] sqlx::Error),
    #[error("the Citus cluster could not be examined")]
    Database(#[from] sqlx::Error),
}

/// A node of the cluster.
#[derive(Debug, Clone)]
pub struct Node {
    id: i32,
    /// Host and port.
    pub address: String,
    pub is_coordinator: bool,
    /// Whether the node stores rows of distributed tables.
    pub has_shards: bool,
}

/// A table that is not distributed yet.
#[derive(Debug, Clone)]
pub struct LocalTable {
    pub name: String,
    /// The size with indexes.
    pub bytes: i64,
}

/// What there is to do.
#[derive(Debug, Clone)]
pub struct DistributionPlan {
    pub database: String,
    pub role: String,
    pub nodes: Vec<Node>,
    /// The number of partitions of `records` that become one table. 0 if it is one table already.
    pub partitions: i64,
    pub tables: Vec<LocalTable>,
    /// The number of shards of each table.
    pub shards: i32,
    /// A table that is distributed already.
    colocate_with: Option<String>,
}

/// The result of checking a node.
#[derive(Debug, Clone)]
pub struct CheckedNode {
    pub address: String,
    /// The number of shards of the table `records` on this node.
    pub shards: i64,
    pub problem: Option<String>,
}

#[derive(sqlx::FromRow)]
struct FoundTable {
    name: String,
    bytes: i64,
    /// These columns are null if the table is not distributed.
    distribution_column: Option<String>,
    colocation_id: Option<i32>,
    shard_count: Option<i64>,
}

/// An installation whose records database is on Citus.
pub struct Distribution {
    control: PgConnection,
    records: PgConnection,
    options: sqlx::postgres::PgConnectOptions,
}

impl Distribution {
    /// Connects to both databases and migrates them.
    pub async fn open(databases: Databases) -> Result<Self, DistributionError> {
        let Some(records) = databases.records else { return Err(DistributionError::NotSeparate) };
        let (_, mut control) = prepare(databases.control, "DATABASE_URL").await?;
        let (options, mut migrated) = prepare(records, "SYNCLINE_RECORDS_DATABASE_URL").await?;
        database_pair::use_two(&mut control, &mut migrated).await.map_err(DistributionError::Open)?;
        if !citus::is_installed(&mut migrated).await? {
            return Err(DistributionError::NoExtension);
        }
        migrated.close().await?;
        // Citus explains at each step what it leaves to do, which `apply` does.
        let options = options
            .options(citus::SESSION)
            .options([("client_min_messages", "error")])
            .disable_statement_logging();
        let mut records = options.connect().await?;
        if !sqlx::query_scalar::<_, bool>("SELECT citus_is_coordinator()").fetch_one(&mut records).await? {
            return Err(DistributionError::NotCoordinator);
        }
        Ok(Self { control, records, options })
    }

    /// Finds out what there is to do. New tables get `shards` shards each.
    pub async fn plan(&mut self, shards: i32) -> Result<DistributionPlan, DistributionError> {
        let nodes = self.nodes().await?;
        if !nodes.iter().any(|node| node.has_shards) {
            return Err(DistributionError::NoWorkers);
        }
        for (node, result) in self.ask_all(&nodes, "SELECT 1").await? {
            if let Err(reason) = result {
                return Err(DistributionError::Node { node: node.address, reason });
            }
        }
        let found: Vec<FoundTable> = sqlx::query_as(
            "SELECT name, pg_total_relation_size(name::regclass) + (
                        SELECT coalesce(sum(pg_total_relation_size(relid)), 0)::bigint
                        FROM pg_partition_tree(name::regclass)
                    ) AS bytes,
                    c.distribution_column, c.colocation_id, c.shard_count
             FROM unnest($1::text[]) WITH ORDINALITY AS wanted (name, number)
             LEFT JOIN citus_tables c ON c.table_name = name::regclass
             ORDER BY number",
        )
        .bind(TABLES.map(str::to_owned).to_vec())
        .fetch_all(&mut self.records)
        .await?;
        let mut first: Option<(String, i32, i64)> = None;
        let mut tables = Vec::new();
        for FoundTable { name, bytes, distribution_column, colocation_id, shard_count } in found {
            let (Some(column), Some(colocation), Some(shard_count)) =
                (distribution_column, colocation_id, shard_count)
            else {
                tables.push(LocalTable { name, bytes });
                continue;
            };
            let (_, expected, _) = first.get_or_insert_with(|| (name.clone(), colocation, shard_count));
            if column != "connection_pk" || *expected != colocation {
                return Err(DistributionError::OtherDistribution { table: name });
            }
        }
        let partitions =
            sqlx::query_scalar("SELECT count(*) FROM pg_partition_tree('records'::regclass) WHERE level > 0")
                .fetch_one(&mut self.records)
                .await?;
        let (database, role) = sqlx::query_as("SELECT current_database()::text, current_user::text")
            .fetch_one(&mut self.records)
            .await?;
        let shards = first.as_ref().map_or(shards, |(_, _, count)| i32::try_from(*count).unwrap_or(shards));
        let colocate_with = first.map(|(name, ..)| name);
        Ok(DistributionPlan { database, role, nodes, partitions, tables, shards, colocate_with })
    }

    /// Carries out a plan: in one transaction, so that an interruption changes nothing. Then removes the former rows of
    /// the coordinator, and sets the planner's settings of this role on all nodes.
    pub async fn apply(&mut self, plan: &DistributionPlan) -> Result<(), DistributionError> {
        if !plan.tables.is_empty() {
            self.lock_hosts_out().await?;
            self.distribute(plan).await.map_err(DistributionError::Failed)?;
        }
        self.remove_local_rows().await?;
        for (name, value) in planner_settings() {
            let sql = format!(
                "DO $$ BEGIN EXECUTE format(
                     'ALTER ROLE CURRENT_USER IN DATABASE %I SET {name} TO {value}', current_database()
                 ); END $$"
            );
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut self.records).await?;
        }
        Ok(())
    }

    /// Checks that each node has the settings, with new connections between the nodes.
    pub async fn check(&mut self, plan: &DistributionPlan) -> Result<Vec<CheckedNode>, DistributionError> {
        self.records = self.options.connect().await?;
        let names: Vec<String> = planner_settings().map(|(name, _)| format!("'{name}'")).collect();
        let command = format!(
            "SELECT string_agg(name, ', ' ORDER BY name) FROM pg_settings \
             WHERE name IN ({}) AND setting <> 'off'",
            names.join(", ")
        );
        let shards: Vec<(i32, i64)> = sqlx::query_as(
            "SELECT n.nodeid, count(*) FROM pg_dist_placement p
             JOIN pg_dist_shard s USING (shardid) JOIN pg_dist_node n ON n.groupid = p.groupid
             WHERE s.logicalrelid = 'records'::regclass AND p.shardstate = 1
             GROUP BY n.nodeid",
        )
        .fetch_all(&mut self.records)
        .await?;
        let mut checked = Vec::new();
        for (node, result) in self.ask_all(&plan.nodes, &command).await? {
            let problem = match result {
                Ok(wrong) if wrong.is_empty() => None,
                Ok(wrong) => Some(format!(
                    "the settings of role `{}` in database `{}` were not stored: {wrong}",
                    plan.role, plan.database
                )),
                Err(reason) => Some(reason),
            };
            let shards = shards.iter().find(|(id, _)| *id == node.id).map_or(0, |(_, count)| *count);
            checked.push(CheckedNode { address: node.address, shards, problem });
        }
        Ok(checked)
    }

    pub async fn close(self) -> sqlx::Result<()> {
        self.records.close().await?;
        self.control.close().await
    }

    async fn nodes(&mut self) -> sqlx::Result<Vec<Node>> {
        let rows: Vec<(i32, String, bool, bool)> = sqlx::query_as(
            "SELECT nodeid, nodename || ':' || nodeport, groupid = 0, shouldhaveshards FROM pg_dist_node
             WHERE noderole = 'primary' ORDER BY nodeid",
        )
        .fetch_all(&mut self.records)
        .await?;
        let nodes = rows.into_iter().map(|(id, address, is_coordinator, has_shards)| Node {
            id,
            address,
            is_coordinator,
            has_shards,
        });
        Ok(nodes.collect())
    }

    /// Executes a query that returns one text on all nodes. A node's failure is its result.
    async fn ask_all(
        &mut self,
        nodes: &[Node],
        command: &str,
    ) -> sqlx::Result<Vec<(Node, Result<String, String>)>> {
        let rows: Vec<(i32, bool, String)> =
            sqlx::query_as("SELECT nodeid, success, coalesce(result, '') FROM run_command_on_all_nodes($1)")
                .bind(command)
                .fetch_all(&mut self.records)
                .await?;
        let result = |node: &Node| match rows.iter().find(|(id, ..)| *id == node.id) {
            Some((_, true, result)) => Ok(result.clone()),
            Some((_, false, error)) => Err(error.clone()),
            None => Err("it is not active".to_owned()),
        };
        Ok(nodes.iter().map(|node| (node.clone(), result(node))).collect())
    }

    /// Keeps hosts from starting until this connection is closed, because they migrate the database first. Fails if a
    /// host is running.
    async fn lock_hosts_out(&mut self) -> Result<(), DistributionError> {
        let locked = Migrate::lock(&mut self.records).await;
        locked.map_err(|source| OpenError::Migration { setting: "SYNCLINE_RECORDS_DATABASE_URL", source })?;
        let is_used: bool = sqlx::query_scalar(
            "SELECT EXISTS (
                 SELECT FROM pg_stat_activity
                 WHERE datname = current_database() AND application_name = $1 AND pid <> pg_backend_pid()
             )",
        )
        .bind(APPLICATION_NAME)
        .fetch_one(&mut self.records)
        .await?;
        if is_used || hosts::is_any_alive(&mut self.control).await? {
            return Err(DistributionError::HostsRunning);
        }
        Ok(())
    }

    async fn distribute(&mut self, plan: &DistributionPlan) -> sqlx::Result<()> {
        let mut tx = self.records.begin().await?;
        // Citus otherwise refuses to distribute a table that the same transaction has created.
        sqlx::query("SET LOCAL citus.multi_shard_modify_mode TO 'sequential'").execute(&mut *tx).await?;
        if plan.partitions > 0 {
            sqlx::raw_sql(MAKE_RECORDS_ONE_TABLE).execute(&mut *tx).await?;
        }
        let mut colocate_with = plan.colocate_with.as_deref();
        for table in &plan.tables {
            match colocate_with {
                Some(other) => {
                    let sql =
                        "SELECT create_distributed_table($1::regclass, 'connection_pk', colocate_with => $2)";
                    sqlx::query(sql).bind(&table.name).bind(other).execute(&mut *tx).await?;
                }
                None => {
                    let sql = "SELECT create_distributed_table($1::regclass, 'connection_pk', colocate_with => 'none',
                                                               shard_count => $2)";
                    sqlx::query(sql).bind(&table.name).bind(plan.shards).execute(&mut *tx).await?;
                    colocate_with = Some(&table.name);
                }
            }
        }
        tx.commit().await
    }

    /// Removes the rows that the coordinator still has after they were copied to the nodes.
    async fn remove_local_rows(&mut self) -> sqlx::Result<()> {
        for table in TABLES {
            sqlx::query(
                "SELECT truncate_local_data_after_distributing_table($1::regclass)
                 WHERE pg_relation_size($1::regclass) > 0",
            )
            .bind(table)
            .execute(&mut self.records)
            .await?;
        }
        Ok(())
    }
}

/// The settings of sessions that restrict the planner. The nodes need them, too, but hosts connect to the coordinator
/// only.
fn planner_settings() -> impl Iterator<Item = (&'static str, &'static str)> {
    SESSION.into_iter().filter(|(_, value)| *value == "off")
}

/// Copies the rows of all partitions into one table with the same indexes. A distributed table has its own shards, and
/// each of them would have all partitions.
const MAKE_RECORDS_ONE_TABLE: &str = "
    DO $$
    DECLARE
        view text := pg_get_viewdef('syncline_views.records'::regclass);
        statements text[];
        statement text;
    BEGIN
        SELECT array_agg(sql) INTO statements FROM (
            SELECT format('ALTER TABLE records ADD CONSTRAINT %I %s', conname, pg_get_constraintdef(oid)) AS sql
            FROM pg_constraint WHERE conrelid = 'records'::regclass AND contype IN ('p', 'u')
            UNION ALL
            SELECT replace(pg_get_indexdef(indexrelid), ' ON ONLY ', ' ON ')
            FROM pg_index
            WHERE indrelid = 'records'::regclass
              AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid)
        ) AS definitions;
        ALTER TABLE records RENAME TO records_partitioned;
        CREATE TABLE records (LIKE records_partitioned INCLUDING ALL EXCLUDING INDEXES);
        INSERT INTO records SELECT * FROM records_partitioned;
        EXECUTE 'CREATE OR REPLACE VIEW syncline_views.records AS ' || view;
        DROP TABLE records_partitioned;
        FOREACH statement IN ARRAY statements LOOP
            EXECUTE statement;
        END LOOP;
    END
    $$";
