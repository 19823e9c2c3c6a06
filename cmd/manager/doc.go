// Command manager is the operator: it keeps a sandboxed pod for every ExecSession.
// See package controllers for what it runs.
//
// It is configured by flags, by variables (EXECSESSION_ and the flag's name in capitals,
// with underscores) and by a file (--config), in this order of precedence. `manager version` prints the version.
package main
