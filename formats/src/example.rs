//! `tf.train.Example`: the wire format of records.
