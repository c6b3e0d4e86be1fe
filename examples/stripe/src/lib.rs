//! Stripe: customers and invoices as records, and an action that adds a customer.

mod customers;
mod invoices;

syncline_sdk::export!(customers::customers, customers::create_customer, invoices::invoices);
