//! A typed job graph on timely dataflow, with flow control, bounded memory and exact order.
