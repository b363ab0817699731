//! What each node says of itself in the store.

use std::time::Duration;

use firstflight_tickets::KeyStatus;
use serde::{Deserialize, Serialize};

use super::{Records, SharedRing, SharedRingError};

/// A node and the ticket keys that it has, as an operator may see them. Times are seconds since
/// 1970, by the node's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its name.
    pub node: String,
    /// Its zone, if it has one.
    pub zone: Option<String>,
    /// When its process started.
    pub started: u64,
    /// Its version of this program.
    pub version: String,
    /// Its ring, the oldest key first, each with its last use there.
    pub keys: Vec<KeyStatus>,
    /// When it wrote this.
    pub seen_at: u64,
}

impl<S: Records> SharedRing<S> {
    /// Tells the others of this node. Call it about every ten seconds: the record is gone after
    /// thirty.
    ///
    /// # Errors
    /// [`SharedRingError::Store`].
    pub async fn report(&self, status: &NodeStatus) -> Result<(), SharedRingError> {
        // Numbers and texts: this cannot fail.
        let record = serde_json::to_vec(status).unwrap_or_default();
        self.store.put(&place(&status.node), &record, LIFE).await?;
        Ok(self.store.add(NODES, &status.node).await?)
    }

    /// The nodes that have told of themselves in the last half minute, by their names.
    ///
    /// # Errors
    /// [`SharedRingError::Store`].
    pub async fn nodes(&self) -> Result<Vec<NodeStatus>, SharedRingError> {
        let mut names = self.store.members(NODES).await?;
        names.sort();
        let mut nodes = Vec::with_capacity(names.len());
        for name in names {
            match self.store.get(&place(&name)).await? {
                // One of another version, perhaps; it is none of ours to remove.
                Some(record) => nodes.extend(serde_json::from_slice::<NodeStatus>(&record).ok()),
                None => self.store.remove(NODES, &name).await?,
            }
        }
        Ok(nodes)
    }
}

fn place(node: &str) -> String {
    format!("node:{node}")
}

const NODES: &str = "nodes";
const LIFE: Duration = Duration::from_secs(30);
