//! Who a request comes from: rest_auth/jwt by header, rest_auth/local by socket. Tokens are plain words
//! here; nothing is signed.

use std::collections::BTreeMap;

use http::HeaderMap;

use super::Peer;

/// The tokens that are valid now, and the user behind the Unix socket.
#[derive(Clone, Debug)]
pub struct Auth {
    /// Token to user.
    pub tokens: BTreeMap<String, String>,
    /// Who comes in by the Unix socket without a token.
    pub socket_user: String,
}

impl Default for Auth {
    /// One token, `mock-token`, of user `slurm`; the socket is root's.
    fn default() -> Self {
        let tokens = BTreeMap::from([("mock-token".to_owned(), "slurm".to_owned())]);
        Self { tokens, socket_user: "root".to_owned() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Identity {
    User(String),
    BadToken,
}

impl Auth {
    /// `None` if there is no token where one is needed.
    pub(super) fn identify(&self, headers: &HeaderMap, peer: Peer) -> Option<Identity> {
        let header = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
        let bearer = || header("authorization").and_then(|v| v.strip_prefix("Bearer "));
        let Some(token) = header("x-slurm-user-token").or_else(bearer) else {
            return match peer {
                Peer::Socket => Some(Identity::User(self.socket_user.clone())),
                Peer::Tcp => None,
            };
        };
        let Some(owner) = self.tokens.get(token) else { return Some(Identity::BadToken) };
        match header("x-slurm-user-name") {
            None => Some(Identity::User(owner.clone())),
            Some(name) if name == owner => Some(Identity::User(owner.clone())),
            // A token of root or SlurmUser acts for everybody.
            Some(name) if matches!(owner.as_str(), "root" | "slurm") => Some(Identity::User(name.to_owned())),
            Some(_) => Some(Identity::BadToken),
        }
    }
}
