//! Typed tables in the store, and the batches that change them.
//!
//! Decides how keys and values lie in sled: one tree, keys `table 0x00 key` in the order of the key type, values JSON.
//! (One tree because a sled batch is atomic within a tree only.) Knows nothing of what the tables mean.

use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Error;

/// What a table can be keyed by. The bytes sort as the keys do.
pub trait Key: Sized {
    /// The key as bytes.
    fn encode(&self) -> Vec<u8>;
    /// The key from its bytes; `None` if they are not what `encode` gives.
    fn decode(bytes: &[u8]) -> Option<Self>;
}

impl Key for String {
    fn encode(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        String::from_utf8(bytes.to_vec()).ok()
    }
}

impl Key for u64 {
    fn encode(&self) -> Vec<u8> {
        self.to_be_bytes().to_vec()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(u64::from_be_bytes)
    }
}

/// A named table from `K` to `V`. The name must be fixed, unique in the store and free of NUL.
#[derive(Debug)]
pub struct Table<K, V> {
    name: &'static str,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K: Key, V: Serialize + DeserializeOwned> Table<K, V> {
    /// Names a table.
    pub const fn new(name: &'static str) -> Self {
        Table { name, types: PhantomData }
    }

    pub(super) fn prefix(&self) -> Vec<u8> {
        let mut prefix = self.name.as_bytes().to_vec();
        prefix.push(0);
        prefix
    }

    pub(super) fn key(&self, key: &K) -> Vec<u8> {
        let mut bytes = self.prefix();
        bytes.extend_from_slice(&key.encode());
        bytes
    }

    pub(super) fn value(&self, bytes: &[u8]) -> Result<V, Error> {
        serde_json::from_slice(bytes).map_err(|source| Error::Value { table: self.name, source })
    }

    pub(super) fn row(&self, key: &[u8], value: &[u8]) -> Result<(K, V), Error> {
        let key =
            key.get(self.name.len() + 1..).and_then(K::decode).ok_or(Error::Key { table: self.name })?;
        Ok((key, self.value(value)?))
    }
}

/// Changes that take effect together.
#[derive(Debug, Default)]
pub struct Batch {
    pub(super) inner: sled::Batch,
}

impl Batch {
    /// A batch that changes nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the value of a key.
    pub fn put<K, V>(&mut self, table: &Table<K, V>, key: &K, value: &V) -> Result<(), Error>
    where
        K: Key,
        V: Serialize + DeserializeOwned,
    {
        let value = serde_json::to_vec(value).map_err(|source| Error::Value { table: table.name, source })?;
        self.inner.insert(table.key(key), value);
        Ok(())
    }

    /// Removes a key, if it is there.
    pub fn remove<K, V>(&mut self, table: &Table<K, V>, key: &K)
    where
        K: Key,
        V: Serialize + DeserializeOwned,
    {
        self.inner.remove(table.key(key));
    }
}
