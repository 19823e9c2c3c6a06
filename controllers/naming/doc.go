// Package naming makes the names of what belongs to a session: the same name every
// time, so that an operator that forgot what it made finds it again instead of making another.
package naming
